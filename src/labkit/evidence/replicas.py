"""Each replica's work on one time axis, with the events that happened to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labkit.evidence.timeline import COLORS, GREY, save_figure

BIN_S = 0.5
WORDS_ROOM = 0.6  # of the time axis: an event that ends later has its words on its left


class ReplicaBatch(NamedTuple):
    """What a replica executed in one step: ``size`` pieces of work of one kind. Times in seconds."""

    began: float
    ended: float
    kind: str
    size: int


class ReplicaEvent(NamedTuple):
    """Something that happened to the replicas, in words. Times in seconds."""

    began: float
    ended: float
    words: str


def draw_replicas(
    steps: Mapping[str, Sequence[ReplicaBatch]], events: Sequence[ReplicaEvent], path: Path, title: str
) -> None:
    """Write the picture: what happened above, each event in a row of its own; below a panel for each replica.

    Args:
        steps: by replica's number, in any order; counted for each half second in which they ended.
    """
    from matplotlib.figure import Figure

    every = [step for own in steps.values() for step in own]
    zero = min((step.began for step in every), default=0.0)
    end = max((step.ended for step in every), default=1.0) - zero
    kinds = sorted({step.kind for step in every})
    heights = [0.35 + 0.25 * len(events), *(1.7 for _ in steps)]
    figure = Figure(figsize=(10, 1.2 + sum(heights)))
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": heights})
    (above,), *below = axes
    _draw_events(above, events, zero, end)
    top = 0.0
    for (axis,), (number, own) in zip(below, sorted(steps.items()), strict=True):
        for color, kind in zip(COLORS, kinds, strict=False):
            counts = _counts_per_second([step for step in own if step.kind == kind], zero, end)
            edges = [index * BIN_S for index in range(len(counts) + 1)]
            axis.stairs(counts, edges, color=color, linewidth=1.6, label=kind)
            top = max(top, *counts)
        for event in events:
            axis.axvspan(event.began - zero, event.ended - zero, color=GREY, alpha=0.12, linewidth=0)
        axis.set_title(f"replica {number}", loc="left", fontsize=10)
        axis.set_ylabel("per second", fontsize=9)
        axis.grid(axis="y", alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    for (axis,) in below:
        axis.set_ylim(0, top * 1.1 or 1)
    below[-1][0].set_xlabel("seconds since the first request")
    handles, labels = below[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper right", frameon=False, fontsize=9, ncols=max(1, len(labels)))
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.tight_layout()
    save_figure(figure, path)


def _draw_events(axis: Any, events: Sequence[ReplicaEvent], zero: float, end: float) -> None:
    for row, event in enumerate(events):
        began, ended = event.began - zero, event.ended - zero
        axis.broken_barh([(began, max(ended - began, 0.05))], (row - 0.3, 0.6), color=GREY, linewidth=0)
        right = ended < WORDS_ROOM * end
        axis.annotate(
            event.words,
            (ended if right else began, row),
            xytext=(5 if right else -5, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            fontsize=9,
        )
    axis.set_ylim(len(events) - 0.4, -0.6)
    axis.set_yticks([])
    axis.tick_params(axis="x", length=0)
    axis.spines[:].set_visible(False)


def _counts_per_second(steps: Sequence[ReplicaBatch], zero: float, end: float) -> list[float]:
    """A rate for each half second."""
    counts: Counter[int] = Counter()
    for step in steps:
        counts[int((step.ended - zero) / BIN_S)] += step.size
    return [counts[index] / BIN_S for index in range(int(end / BIN_S) + 1)]
