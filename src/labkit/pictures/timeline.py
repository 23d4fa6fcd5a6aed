"""The picture of a run: one row per request, one mark per token, and below it what the scheduler executed."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from labkit.lane import Lane
from labkit.records import RequestRecord

# Okabe and Ito's palette: told apart also by the colour-blind.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
GREY = "#555555"


def draw(lanes: Sequence[Lane], path: Path, title: str) -> None:
    """Write the picture; every lane has its own zero (its first request's start), all share one time scale."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    heights = [part for lane in lanes for part in (0.9 + 0.42 * len(lane.records), 1.1)]
    figure, axes = plt.subplots(
        len(heights),
        1,
        figsize=(11, 1.2 + sum(heights)),
        sharex=True,
        gridspec_kw={"height_ratios": heights, "hspace": 0.5},
        squeeze=False,
    )
    for index, lane in enumerate(lanes):
        zero = min(record.start for record in lane.records)
        _requests(axes[2 * index][0], lane, zero)
        _batches(axes[2 * index + 1][0], lane, zero)
    axes[-1][0].set_xlabel("seconds since the first request")
    figure.suptitle(title, x=0.01, y=0.93, ha="left", fontsize=13, fontweight="bold")
    save(figure, path, cropped=True)


def save(figure: Any, path: Path, cropped: bool = False) -> None:
    """Write a figure whole or not at all, and close it.

    Args:
        cropped: to what is drawn, whatever the figure's own size.
    """
    import matplotlib.pyplot as plt

    temporary = path.with_name(f".{path.name}.part")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a prompt in another script is only a label
        figure.savefig(temporary, dpi=110, bbox_inches="tight" if cropped else None, format="png")
    plt.close(figure)
    temporary.replace(path)


def _requests(axis: Any, lane: Lane, zero: float) -> None:
    for row, record in enumerate(lane.records):
        color = COLORS[row % len(COLORS)]
        times = [at - zero for at, _ in record.responses]
        start = record.start - zero
        axis.plot([start, times[0]], [row, row], color=GREY, linewidth=1, linestyle=":")
        axis.plot([start], [row], marker="|", color=GREY, markersize=11)
        axis.plot([times[0], times[-1]], [row, row], color=color, linewidth=7, alpha=0.25, solid_capstyle="butt")
        axis.plot(times, [row] * len(times), "|", color=color, markersize=9, markeredgewidth=0.8)
    axis.set_yticks(range(len(lane.records)), [_label(record) for record in lane.records])
    axis.set_ylim(len(lane.records) - 0.4, -0.6)
    axis.set_title(lane.title, loc="left", fontsize=11)
    axis.grid(axis="x", alpha=0.25)
    _bare(axis)


def _batches(axis: Any, lane: Lane, zero: float) -> None:
    """Batch size of each execution, as wide as it lasted."""
    for step in lane.steps:
        axis.bar(
            step.began - zero,
            step.batch,
            width=max(step.ended - step.began, 1e-4),
            align="edge",
            color=GREY,
            linewidth=0,
        )
    top = max((step.batch for step in lane.steps), default=1)
    axis.set_ylim(0, top + 0.4)
    axis.set_yticks(sorted({0, 1, top}))
    axis.set_ylabel("batch", fontsize=9)
    axis.grid(axis="x", alpha=0.25)
    _bare(axis)


def _bare(axis: Any) -> None:
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _label(record: RequestRecord) -> str:
    text = record.prompt if len(record.prompt) <= 28 else record.prompt[:27] + "…"
    return text.replace("$", r"\$")
