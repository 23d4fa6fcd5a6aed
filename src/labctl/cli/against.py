"""``labctl bench --against-engine``, as it is asked for and shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from labctl.cli import options as opt
from labctl.cli.console import say, show_dry_run
from labctl.manifest.schema import Lab
from labctl.runtimes.record import UpOptions
from labctl.stack.session import Session
from labkit.printable import printable
from labkit.tables import table

if TYPE_CHECKING:
    from labkit.evidence.overhead import Comparison
    from labkit.workloads.dataset import Count, Item

COLUMNS = ("part", "served, s", "alone, s", "difference, s", "of it")


@dataclass(frozen=True)
class Sent:
    """The workload: chat-like unless there is a dataset; ``tokens`` None: answers of chat-like lengths."""

    dataset: Path | None
    requests: int
    tokens: int | None
    seed: int

    def items(self, count: Count) -> Sequence[Item]:
        from labkit.workloads import dataset
        from labkit.workloads.bench import prompts_from

        if self.dataset:
            made = [dataset.Item(prompt, 1) for prompt in prompts_from(self.dataset)[: self.requests]]
        else:
            made = dataset.chat(count, self.requests, self.seed)
        return [dataset.Item(item.prompt, self.tokens or item.output_tokens) for item in made]


def measure_against_engine(
    session: Session,
    lab: Lab,
    stack: str,
    options: UpOptions,
    model: str,
    sent: Sent,
    rounds: int,
    output: Path | None,
    json_output: bool,
) -> None:
    """Measure and print; or only say what would be done."""
    from labctl.labs.bench import against_engine, engine_of

    engine_of(lab, stack, options.choices.profile, model)
    outcome = against_engine(session, lab, stack, options, sent.items, rounds)
    if session.todo is not None:
        show_dry_run(session.todo, json_output)
        return
    opt.write_result((outcome.folder / "result.json").read_text(), output, json_output)
    if json_output:
        return
    say(account(outcome.comparison))
    if outcome.edited:
        click.echo(printable(f"\nedited: {', '.join(outcome.edited)}"))
    click.echo(f"\nresults in {outcome.folder}")


def account(found: Comparison) -> str:
    """The table of where the time goes, what a step is made of, and the sentence."""
    from labkit.evidence.overhead import PARTS

    through, bare = found.means
    lost = found.differences
    whole = sum(lost.values())
    rows = [
        (
            title,
            f"{through.parts[part]:.3f}",
            f"{bare.parts[part]:.3f}",
            f"{lost[part]:+.3f}",
            f"{lost[part] / whole:.0%}" if whole > 0 else "",
        )
        for part, title in PARTS.items()
    ]
    rows.append(("all", f"{through.seconds:.3f}", f"{bare.seconds:.3f}", f"{whole:+.3f}", ""))
    steps = [
        f"{name}: {one.steps:.0f} steps of {one.step_ms:.1f} ms in the engine, {one.scheduling_share:.1%} of a step is "
        f"scheduling, answering and recording, {one.idle_ms:.2f} ms between two"
        for name, one in (("served", through), ("alone", bare))
    ]
    return "\n".join([table(rows, COLUMNS, right=range(1, 5)), "", *steps, "", found.sentence()])
