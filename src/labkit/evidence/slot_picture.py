"""The picture of a sequence batcher: which sequence had which slot, and below it the rows of every execution."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.evidence.slots import Timeline
from labkit.evidence.timeline import COLORS, GREY, save_figure


def draw_slots(timeline: Timeline, path: Path, title: str) -> None:
    """Write the picture. Both parts have one column for each execution, so that a slot and its row can be compared."""
    from matplotlib.figure import Figure

    ids = sorted({stay.id for stay in timeline.stays})
    colors = {id: COLORS[number % (len(COLORS) - 1)] for number, id in enumerate(ids)}
    slots, rows = _slots(timeline), _rows(timeline)
    heights = [0.3 + 0.3 * len(slots), 0.3 + 0.3 * len(rows)]
    height = 1.2 + sum(heights)
    figure = Figure(figsize=(10, height))
    upper, lower = figure.subplots(
        2,
        1,
        sharex=True,
        gridspec_kw={"height_ratios": heights, "hspace": 0.12, "top": 1 - 0.75 / height, "bottom": 0.45 / height},
    )
    _stays(upper, timeline, slots, colors)
    _executions(lower, timeline, rows, colors)
    lower.set_xlabel("executions of the model", fontsize=9)
    figure.legend(
        handles=_legend(timeline),
        loc="upper left",
        bbox_to_anchor=(0.11, 1 - 0.3 / height),
        ncols=4,
        fontsize=9,
        frameon=False,
    )
    figure.suptitle(title, x=0.01, y=1 - 0.05 / height, ha="left", fontsize=13, fontweight="bold")
    save_figure(figure, path, cropped=True)


def _legend(timeline: Timeline) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    square: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 7, "color": GREY}
    empty = any("" in execution.rows for execution in timeline.executions)
    return [
        Patch(color=GREY, alpha=0.3, linewidth=0, label="a sequence has this slot"),
        Line2D([], [], **square, label="a request in this row"),
        *([Line2D([], [], **square, markerfacecolor="none", label="an empty row")] if empty else []),
        *([Line2D([], [], color=GREY, linestyle=":", label="waits in Triton's backlog")] if timeline.waits else []),
    ]


def _place(timeline: Timeline, instance: str, what: str, number: int) -> str:
    """ "row 2", and where there are several instances "instance 1, row 2"."""
    several = len({execution.instance for execution in timeline.executions}) > 1
    return f"instance {instance.rpartition('_')[2]}, {what} {number}" if several else f"{what} {number}"


def _slots(timeline: Timeline) -> list[str]:
    slots = sorted({(stay.instance, stay.slot) for stay in timeline.stays})
    waiting = [wait.id for wait in timeline.waits]
    return [*(_place(timeline, instance, "slot", slot) for instance, slot in slots), *waiting]


def _rows(timeline: Timeline) -> list[str]:
    rows = sorted({(execution.instance, row) for execution in timeline.executions for row in range(execution.size)})
    return [_place(timeline, instance, "row", row) for instance, row in rows]


def _stays(axis: Any, timeline: Timeline, labels: Sequence[str], colors: Mapping[str, str]) -> None:
    times = sorted(execution.at for execution in timeline.executions)

    def columns(began: float, ended: float) -> tuple[float, float]:
        """The first and the last column of the executions between two times."""
        first = bisect_left(times, began) + 1
        return first - 0.5, max(bisect_right(times, ended), first) + 0.5

    for stay in timeline.stays:
        at = labels.index(_place(timeline, stay.instance, "slot", stay.slot))
        left, right = columns(stay.began, stay.ended)
        axis.barh(at, right - left, left=left, height=0.75, color=colors[stay.id], alpha=0.3, linewidth=0)
        axis.text((left + right) / 2, at, stay.id, ha="center", va="center", fontsize=9)
    for wait in timeline.waits:
        at = labels.index(wait.id)
        axis.plot(columns(wait.began, wait.ended), [at, at], color=GREY, linewidth=1.5, linestyle=":")
    _finish(axis, labels)


def _executions(axis: Any, timeline: Timeline, labels: Sequence[str], colors: Mapping[str, str]) -> None:
    for number, execution in enumerate(sorted(timeline.executions, key=lambda execution: execution.at), 1):
        for row, id in enumerate(execution.rows):
            at = labels.index(_place(timeline, execution.instance, "row", row))
            color = colors.get(id, GREY)
            axis.plot([number], [at], "s", color=color, markerfacecolor=color if id else "none", ms=7, mew=0.8)
    _finish(axis, labels)


def _finish(axis: Any, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels, fontsize=9)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
