"""The picture of a loaded server: requests in flight, the batch of each step, and the KV cache, over time."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.evidence.records import Lane
from labkit.evidence.timeline import COLORS, GREY, save_figure


def draw_batches(lanes: Sequence[Lane], path: Path, title: str) -> None:
    """Write the picture: one row for each lane, all on one time scale that begins with its first request."""
    _draw([[lane] for lane in lanes], path, title)


def draw_grid(rows: Mapping[str, Sequence[Lane]], path: Path, title: str) -> None:
    """The same, a row for each name with its lanes side by side; a lane has its own time scale, to be seen whole."""
    _draw([*rows.values()], path, title)


def _draw(rows: Sequence[Sequence[Lane]], path: Path, title: str) -> None:
    from matplotlib.figure import Figure

    columns = max(map(len, rows))
    between = 0.45 if columns == 1 else 0.6
    height = 1 + 2.1 * len(rows)  # inches
    figure = Figure(figsize=(11 if columns == 1 else 5 * columns, height))
    axes = figure.subplots(
        len(rows),
        columns,
        squeeze=False,
        sharex=columns == 1,
        gridspec_kw={"hspace": between, "wspace": 0.3, "top": 1 - 0.8 / height},
    )
    for axis, lane in itertools.zip_longest(axes.flat, _padded(rows, columns)):
        if lane is None:
            axis.set_visible(False)
        else:
            _lane(axis, lane)
    for axis in axes[-1] if columns == 1 else axes.flat:
        axis.set_xlabel("seconds since the first request", fontsize=9)
    figure.suptitle(title, x=0.01, y=1 - 0.15 / height, ha="left", fontsize=13, fontweight="bold")
    save_figure(figure, path, cropped=True)


def _padded(rows: Sequence[Sequence[Lane]], columns: int) -> list[Lane | None]:
    return [lane for row in rows for lane in (*row, *[None] * (columns - len(row)))]


def _lane(axis: Any, lane: Lane) -> None:
    zero = min(record.start for record in lane.records)
    times, counts = in_flight(lane)
    axis.step([t - zero for t in times], counts, where="post", color=GREY, linewidth=1, label="in flight")
    axis.set_ylabel("in flight", fontsize=9, color=GREY)
    axis.set_ylim(0)
    axis.set_title(lane.title, loc="left", fontsize=11)
    batch = axis.twinx()
    began = [step.began - zero for step in lane.steps[:1]]  # else a single step would have no width
    edges = [*began, *(step.over - zero for step in lane.steps)]
    sizes = [step.batch for step in (*lane.steps[:1], *lane.steps)]
    batch.step(edges, sizes, where="pre", color=COLORS[0], linewidth=1.2)
    batch.set_ylabel("batch", fontsize=9, color=COLORS[0])
    batch.set_ylim(0)
    preemptions = [(step.began - zero, step.batch) for step in lane.steps if step.evicted]
    if preemptions:
        batch.plot(*zip(*preemptions, strict=True), "v", color=COLORS[5], markersize=5, label="preemption")
        batch.legend(loc="upper right", frameon=False, fontsize=9)
    for side in (axis, batch):
        side.yaxis.get_major_locator().set_params(integer=True)
        side.spines["top"].set_visible(False)


def in_flight(lane: Lane) -> tuple[list[float], list[int]]:
    """When the number of requests in flight changes, and to what."""
    events = sorted([(record.start, 1) for record in lane.records] + [(record.end, -1) for record in lane.records])
    times, counts, count = [], [], 0
    for at, change in events:
        count += change
        times.append(at)
        counts.append(count)
    return times, counts
