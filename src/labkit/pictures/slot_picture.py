"""The picture of a sequence batcher: who had which slot and when, and below it the rows of every execution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.evidence.slots import Timeline
from labkit.pictures.timeline import COLORS, GREY, save


def draw(lanes: Sequence[tuple[str, Timeline]], path: Path, title: str) -> None:
    """Write the picture; every lane (title, timeline) has a zero and a time scale of its own."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    labels = [(_slots(timeline), _rows(timeline)) for _, timeline in lanes]
    heights = [0.6 + 0.3 * len(part) for pair in labels for part in pair]
    figure, axes = plt.subplots(
        len(heights),
        1,
        figsize=(11, 1.2 + 1.15 * sum(heights)),
        gridspec_kw={"height_ratios": heights, "hspace": 0.85},
        squeeze=False,
    )
    for index, ((name, timeline), (slots, rows)) in enumerate(zip(lanes, labels, strict=True)):
        upper, lower = axes[2 * index][0], axes[2 * index + 1][0]
        ids = sorted({stay.id for stay in timeline.stays})
        colors = {id: COLORS[number % (len(COLORS) - 1)] for number, id in enumerate(ids)}
        _stays(upper, timeline, slots, colors)
        upper.set_title(name, loc="left", fontsize=11)
        upper.set_xlabel("milliseconds since the first request (the verbose log slows it down)", fontsize=8)
        _executions(lower, timeline, rows, colors)
        lower.set_xlabel("executions, one column each; hollow: an empty row", fontsize=8)
        for axis in (upper, lower):
            axis.tick_params(labelsize=8)
    figure.suptitle(title, x=0.01, y=0.95, ha="left", fontsize=13, fontweight="bold")
    save(figure, path, cropped=True)


def _slots(timeline: Timeline) -> list[str]:
    slots = sorted({(stay.instance, stay.slot) for stay in timeline.stays})
    return [*(f"{instance} slot {slot}" for instance, slot in slots), *(f"{w.id} waits" for w in timeline.waits)]


def _rows(timeline: Timeline) -> list[str]:
    rows = sorted({(execution.instance, row) for execution in timeline.executions for row in range(execution.size)})
    return [f"{instance} row {row}" for instance, row in rows]


def _stays(axis: Any, timeline: Timeline, labels: Sequence[str], colors: Mapping[str, str]) -> None:
    for stay in timeline.stays:
        at = labels.index(f"{stay.instance} slot {stay.slot}")
        left, right = _ms(timeline, stay.began), _ms(timeline, stay.ended)
        color = colors[stay.id]
        axis.barh(at, right - left, left=left, height=0.75, color=color, alpha=0.3, linewidth=0)
        axis.plot([_ms(timeline, t) for t in stay.requests], [at] * len(stay.requests), "|", color=color, ms=9)
        box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 1}
        axis.text((left + right) / 2, at, stay.id, ha="center", va="center", fontsize=8, bbox=box)
    for wait in timeline.waits:
        at = labels.index(f"{wait.id} waits")
        axis.plot(
            [_ms(timeline, wait.began), _ms(timeline, wait.ended)], [at, at], color=GREY, linewidth=1.5, linestyle=":"
        )
    _finish(axis, labels)


def _executions(axis: Any, timeline: Timeline, labels: Sequence[str], colors: Mapping[str, str]) -> None:
    for number, execution in enumerate(timeline.executions, 1):
        for row, id in enumerate(execution.rows):
            at = labels.index(f"{execution.instance} row {row}")
            color = colors.get(id, GREY)
            axis.plot([number], [at], "s", color=color, markerfacecolor=color if id else "none", ms=7, mew=0.8)
    _finish(axis, labels)


def _ms(timeline: Timeline, at: float) -> float:
    return (at - timeline.began) * 1e3


def _finish(axis: Any, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels, fontsize=8)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="x", alpha=0.25)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
