"""The picture of a loaded server: requests in flight, the batch of each step, and the KV cache, over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labctl.measure.pictures.timeline import COLORS, GREY, Lane


def draw(lanes: Sequence[Lane], path: Path, title: str) -> None:
    """Write the picture: one row for each lane, all on one time scale that begins with its first request."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    height = 1 + 2.1 * len(lanes)  # inches
    figure, axes = plt.subplots(
        len(lanes), 1, figsize=(11, height), sharex=True, squeeze=False,
        gridspec_kw={"hspace": 0.45, "top": 1 - 0.8 / height},
    )  # fmt: skip
    for row, lane in enumerate(lanes):
        _lane(axes[row][0], lane)
    axes[-1][0].set_xlabel("seconds since the first request")
    figure.suptitle(title, x=0.01, y=1 - 0.15 / height, ha="left", fontsize=13, fontweight="bold")
    temporary = path.with_name(f".{path.name}.part")
    figure.savefig(temporary, dpi=110, bbox_inches="tight", format="png")
    plt.close(figure)
    temporary.replace(path)


def _lane(axis: Any, lane: Lane) -> None:
    zero = min(record.start for record in lane.records)
    times, counts = in_flight(lane)
    axis.step([t - zero for t in times], counts, where="post", color=GREY, linewidth=1, label="in flight")
    axis.set_ylabel("in flight", fontsize=9, color=GREY)
    axis.set_ylim(0)
    axis.set_title(lane.title, loc="left", fontsize=11)
    batch = axis.twinx()
    began = [step.began - zero for step in lane.steps[:1]]  # else a single step would have no width
    edges = [*began, *(step.ended - zero for step in lane.steps)]
    sizes = [step.batch for step in (*lane.steps[:1], *lane.steps)]
    batch.step(edges, sizes, where="pre", color=COLORS[0], linewidth=1.2)
    batch.set_ylabel("batch", fontsize=9, color=COLORS[0])
    batch.set_ylim(0)
    evictions = [(step.began - zero, step.batch) for step in lane.steps if step.more.get("preempted")]
    if evictions:
        batch.plot(*zip(*evictions, strict=True), "v", color=COLORS[5], markersize=5, label="eviction")
        batch.legend(loc="upper right", frameon=False, fontsize=9)
    for each in (axis, batch):
        each.yaxis.get_major_locator().set_params(integer=True)
        each.spines["top"].set_visible(False)


def in_flight(lane: Lane) -> tuple[list[float], list[int]]:
    """When the number of requests in flight changes, and to what."""
    events = sorted([(record.start, 1) for record in lane.records] + [(record.end, -1) for record in lane.records])
    times, counts, count = [], [], 0
    for at, change in events:
        count += change
        times.append(at)
        counts.append(count)
    return times, counts
