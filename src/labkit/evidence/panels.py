"""A picture of a few panels side by side, each with its curves or bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit.evidence.timeline import COLORS, GREY, save_figure

Points = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        curves: by name, their x and their y.
        bars: by label, a value for each name of ``names`` (NaN: none); in the place of curves.
        log: both axes of the curves are logarithmic, the x axis to base 2.
        steps: a value holds until the next one.
        dots: each value stands for itself.
        marks: vertical lines, x by label.
    """

    title: str
    y: str
    x: str = ""
    curves: Mapping[str, Points] | None = None
    bars: Mapping[str, Sequence[float]] | None = None
    names: Sequence[str] = ()
    log: bool = False
    steps: bool = False
    dots: bool = False
    marks: Mapping[str, float] | None = None


def draw_panels(panels: Sequence[Panel], path: Path, title: str) -> None:
    """Write the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(panels), 3.6))
    axes = figure.subplots(1, len(panels), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        if panel.curves is not None:
            _curves(axis, panel)
        else:
            _bars(axis, panel)
        axis.set_title(panel.title, loc="left", fontsize=10)
        axis.set_xlabel(panel.x, fontsize=9)
        axis.set_ylabel(panel.y, fontsize=9)
        if not panel.log and axis.get_ylim()[0] >= 0:
            axis.set_ylim(0)
        axis.grid(axis="y", alpha=0.25)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        if len(panel.curves or panel.names) > 1:
            row: dict[str, Any] = {}
            if panel.curves is None:  # bars fill the whole width: the names stand above them
                axis.set_ylim(top=1.15 * axis.get_ylim()[1])
                row = {"loc": "upper left", "ncols": len(panel.names)}
            axis.legend(frameon=False, fontsize=8, **row)
        for label, x in (panel.marks or {}).items():
            axis.axvline(x, color=GREY, linewidth=1, linestyle="--")
            axis.annotate(
                label,
                (x, 1),
                xycoords=("data", "axes fraction"),
                xytext=(4, -4),
                textcoords="offset points",
                ha="left",
                va="top",
                fontsize=8,
                color=GREY,
            )
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold")
    figure.tight_layout()
    save_figure(figure, path)


def _curves(axis: Any, panel: Panel) -> None:
    for color, (name, (xs, ys)) in zip(COLORS, (panel.curves or {}).items(), strict=False):
        if panel.steps:
            axis.step(xs, ys, where="post", color=color, label=name, linewidth=1.3)
        else:
            axis.plot(xs, ys, "o" if panel.dots else "o-", color=color, label=name, markersize=3 if panel.dots else 4)
        if panel.log:
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(xs, [f"{x:g}" for x in xs])
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else "")


def _bars(axis: Any, panel: Panel) -> None:
    bars = panel.bars or {}
    width = 0.8 / max(1, len(panel.names))
    for index, name in enumerate(panel.names):
        at = [number + (index - (len(panel.names) - 1) / 2) * width for number in range(len(bars))]
        axis.bar(at, [values[index] for values in bars.values()], width=width, color=COLORS[index], label=name)
    axis.set_xticks(range(len(bars)), list(bars), fontsize=8)
