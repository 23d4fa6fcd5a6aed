"""``labctl bench --against-engine``, as it is asked for and shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from labkit.tables import table

if TYPE_CHECKING:
    from labctl.labs.bench import Items
    from labkit.evidence.overhead import Comparison
    from labkit.workloads.dataset import Count

COLUMNS = ("part", "served, s", "alone, s", "difference, s", "of it")


def items(prompts: Sequence[str] | None, requests: int, tokens: int | None, seed: int) -> Items:
    """The workload: chat-like unless there are prompts; without ``tokens`` the answers have chat-like lengths."""
    from labkit.workloads.dataset import Item, chat

    def made(count: Count) -> list[Item]:
        asked = chat(count, requests, seed) if prompts is None else [Item(prompt, 1) for prompt in prompts[:requests]]
        return [Item(item.prompt, tokens or item.output_tokens) for item in asked]

    return made


def account(found: Comparison) -> str:
    """The table of where the time goes, what a step is made of, and the sentence."""
    from labkit.evidence.overhead import PARTS

    through, bare = found.means
    lost = found.differences
    whole = sum(lost.values())
    rows = []
    for part, title in PARTS.items():
        share = f"{lost[part] / whole:.0%}" if whole > 0 else ""
        rows.append((title, f"{through.parts[part]:.3f}", f"{bare.parts[part]:.3f}", f"{lost[part]:+.3f}", share))
    rows.append(("all", f"{through.seconds:.3f}", f"{bare.seconds:.3f}", f"{whole:+.3f}", ""))
    steps = [
        f"{name}: {one.steps:.0f} steps of {one.step_ms:.1f} ms in the engine, {one.scheduling_share:.1%} of a step is "
        f"scheduling, answering and recording, {one.idle_ms:.2f} ms between two"
        for name, one in (("served", through), ("alone", bare))
    ]
    return "\n".join([table(rows, COLUMNS, right=range(1, 5)), "", *steps, "", found.sentence()])
