"""``labctl bench --against-engine``, as it is asked for and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli.dry import show
from labctl.manifest.schema import Lab
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import UpOptions
from labctl.tables import table
from labctl.workspace import atomic_write

if TYPE_CHECKING:
    from labctl.measure.evidence.overhead import Comparison
    from labctl.measure.workloads.dataset import Count, Item

COLUMNS = ("part", "served, s", "alone, s", "difference, s", "of it")


@dataclass(frozen=True)
class Sent:
    """The workload: chat-like unless there is a dataset; ``tokens`` None: answers of chat-like lengths."""

    dataset: Path | None
    requests: int
    tokens: int | None
    seed: int

    def items(self, count: Count) -> Sequence[Item]:
        from labctl.measure.workloads import dataset
        from labctl.measure.workloads.bench import prompts_from

        if self.dataset:
            made = [dataset.Item(prompt, 1) for prompt in prompts_from(self.dataset)[: self.requests]]
        else:
            made = dataset.chat(count, self.requests, self.seed)
        return [dataset.Item(item.prompt, self.tokens or item.output_tokens) for item in made]


def compared(
    session: Session, lab: Lab, stack: str, options: UpOptions, model: str, sent: Sent, rounds: int,
    json_file: Path | None, dry: bool,
) -> None:  # fmt: skip
    """Measure and print; or only say what would be done."""
    from labctl.orchestrator.against import against_engine, dry_against, engine_of

    engine_of(lab, stack, options.choices.profile, model)
    if dry:
        show(dry_against(session, lab, stack, options))
        return
    outcome = against_engine(session, lab, stack, options, sent.items, rounds)
    click.echo(account(outcome.comparison))
    if outcome.edited:
        click.echo(f"\nedited: {', '.join(outcome.edited)}")
    click.echo(f"\nresults in {outcome.folder}")
    if json_file:
        atomic_write(json_file.absolute(), (outcome.folder / "result.json").read_bytes())


def account(found: Comparison) -> str:
    """The table of where the time goes, what a step is made of, and the sentence."""
    from labctl.measure.evidence.overhead import PARTS

    through, bare = found.means
    lost = found.differences
    whole = sum(lost.values())
    rows = [
        (title, f"{through.parts[part]:.3f}", f"{bare.parts[part]:.3f}", f"{lost[part]:+.3f}",
         f"{lost[part] / whole:.0%}" if whole > 0 else "")
        for part, title in PARTS.items()
    ]  # fmt: skip
    rows.append(("all", f"{through.seconds:.3f}", f"{bare.seconds:.3f}", f"{whole:+.3f}", ""))
    steps = [
        f"{name}: {one.steps:.0f} steps of {one.step_ms:.1f} ms in the engine, {one.scheduling_share:.1%} of a step is "
        f"scheduling, answering and recording, {one.idle_ms:.2f} ms between two"
        for name, one in (("served", through), ("alone", bare))
    ]
    return "\n".join([table(rows, COLUMNS, right=range(1, 5)), "", *steps, "", found.sentence()])
