"""The picture of a few requests: one row per request, one block per token, and below them the batch of each step."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from labkit.disk import atomic_write
from labkit.evidence.names import letter
from labkit.evidence.records import Lane, RequestRecord

# Okabe and Ito's palette, which colour-blind people can distinguish too.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
GREY = "#555555"
INK, WAIT = "#111111", "#B00020"
HIGH = 0.5  # of a row: a token
IN_MS_BELOW_S = 2.0  # a shorter picture has milliseconds on its axis


def draw_timeline(lanes: Sequence[Lane], path: Path, title: str) -> None:
    """Write the picture; every lane has its own zero (its first request's start), all share one time scale."""
    from matplotlib.figure import Figure

    heights = [part for lane in lanes for part in (0.3 + 0.55 * len(lane.records), 0.55)]
    height = 1.6 + 1.35 * sum(heights)
    figure = Figure(figsize=(10, height))
    axes = figure.subplots(
        len(heights),
        1,
        sharex=True,
        gridspec_kw={"height_ratios": heights, "hspace": 0.45, "top": 1 - 1.1 / height, "bottom": 0.5 / height},
        squeeze=False,
    )
    last = max(record.end - min(r.start for r in lane.records) for lane in lanes for record in lane.records)
    scale, unit = (1e3, "milliseconds") if last < IN_MS_BELOW_S else (1.0, "seconds")
    for index, lane in enumerate(lanes):
        zero = min(record.start for record in lane.records)
        x = partial(_place, zero=zero, scale=scale)
        _requests(axes[2 * index][0], lane, x)
        _batches(axes[2 * index + 1][0], lane, x)
    axes[0][0].set_xlim(left=-0.01 * last * scale)  # where arrows begin: Matplotlib makes room for bars alone
    axes[-1][0].set_xlabel(f"{unit} since the first request")
    figure.legend(handles=_legend(), loc="upper left", bbox_to_anchor=(0.11, 1 - 0.42 / height), ncols=4, frameon=False)
    figure.suptitle(title, x=0.01, y=1 - 0.1 / height, ha="left", fontsize=13, fontweight="bold")
    save_figure(figure, path, cropped=True)


def save_figure(figure: Any, path: Path, cropped: bool = False) -> None:
    """Write a figure whole or not at all.

    Args:
        cropped: to what is drawn, whatever the figure's own size.
    """
    png = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a prompt in another script is only a label
        figure.savefig(png, dpi=110, bbox_inches="tight" if cropped else None, format="png")
    atomic_write(path, png.getvalue())


def _place(at: float, zero: float, scale: float) -> float:
    return (at - zero) * scale


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Line2D([], [], color=WAIT, label="wait for the first token (TTFT)"),
        Patch(facecolor="white", edgecolor=COLORS[0], linewidth=1.6, label="prefill: prompt, first token"),
        Patch(facecolor=COLORS[0], label="decode: one token"),
        Line2D([], [], color=INK, linewidth=3, label="last token"),
    ]


def _requests(axis: Any, lane: Lane, x: Callable[[float], float]) -> None:
    for row, record in enumerate(lane.records):
        color = COLORS[row % len(COLORS)]
        start, times = x(record.start), [x(at) for at, _ in record.responses]
        axis.annotate(
            "",
            (times[0], row),
            (start, row),
            arrowprops={"arrowstyle": "<->", "color": WAIT, "shrinkA": 0, "shrinkB": 0},
        )
        axis.text(start, row - 0.32, f"TTFT {record.ttft_ms:.0f} ms", color=WAIT, fontsize=8, va="bottom")
        began, over = map(x, _prefill(lane, record))
        axis.barh(row, over - began, HIGH, left=began, facecolor="white", edgecolor=color, linewidth=1.6)
        widths = [after - before for before, after in itertools.pairwise(times)]
        axis.barh([row] * len(widths), widths, HIGH, left=times[:-1], color=color, edgecolor="white", linewidth=0.7)
        axis.plot([times[-1]] * 2, [row - HIGH / 2, row + HIGH / 2], color=INK, linewidth=3, solid_capstyle="butt")
    axis.set_yticks(
        range(len(lane.records)), [_label(letter(row), record) for row, record in enumerate(lane.records)], fontsize=9
    )
    axis.set_ylim(len(lane.records) - 0.6, -0.85)
    axis.set_title(lane.title, loc="left", fontsize=11)
    axis.grid(axis="x", alpha=0.25)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _prefill(lane: Lane, record: RequestRecord) -> tuple[float, float]:
    """From when to when the prompt was computed: the last step with a prefill that began before the first token came.

    The client may have the token before the step log says that the step is over.
    """
    first = record.responses[0][0]
    steps = [step for step in lane.steps if step.prefill and record.start <= step.began <= first]
    return (steps[-1].began, min(steps[-1].over, first)) if steps else (first, first)


def _batches(axis: Any, lane: Lane, x: Callable[[float], float]) -> None:
    """The batch of each step, from its beginning to the next one's."""
    if lane.steps:
        edges = [*(x(step.began) for step in lane.steps), x(lane.steps[-1].over)]
        axis.stairs([step.batch for step in lane.steps], edges, fill=True, color=GREY)
    top = max((step.batch for step in lane.steps), default=1)
    axis.set_ylim(0, top + 0.4)
    axis.set_yticks(sorted({0, 1, top}))
    axis.set_ylabel("batch", fontsize=9)
    axis.grid(axis="x", alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _label(name: str, record: RequestRecord) -> str:
    text = record.prompt if len(record.prompt) <= 28 else record.prompt[:27] + "…"
    return f"{name}  {text}".replace("$", r"\$")
