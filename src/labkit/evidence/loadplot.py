"""The pictures of a stepped load: users, requests/s, latencies, and the batches that formed, on one time axis."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.evidence.timeline import COLORS, GREY, save_figure

Seconds = Sequence[Mapping[str, float]]
ROWS = ("users", "requests/s", "latency, ms", "mean batch", "queue, ms")
LOGARITHMIC = ("latency, ms", "queue, ms")  # the variants differ by orders of magnitude


def draw_load_steps(columns: Mapping[str, Mapping[str, Seconds]], path: Path, title: str) -> None:
    """Write the picture.

    Args:
        columns: by column title (an output length) and variant, the per-second rows of ``stepped.SteppedLoad.seconds``.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, NullFormatter

    figure = Figure(figsize=(1.5 + 5 * len(columns), 8.5))
    axes = figure.subplots(
        len(ROWS),
        len(columns),
        sharex="col",
        squeeze=False,
        gridspec_kw={"hspace": 0.18, "wspace": 0.16, "height_ratios": (0.6, 1, 1, 1, 1)},
    )
    for column, (heading, variants) in enumerate(columns.items()):
        axes[0][column].set_title(heading, loc="left", fontsize=11)
        for index, (variant, seconds) in enumerate(variants.items()):
            _lines([row[column] for row in axes], variant, seconds, COLORS[index])
        axes[-1][column].set_xlabel("seconds")
    for row, label in zip(axes, ROWS, strict=True):
        row[0].set_ylabel(label, fontsize=9)
        for axis in row:
            if label in LOGARITHMIC:
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.yaxis.set_minor_formatter(NullFormatter())
            else:
                axis.set_ylim(0)
            axis.grid(alpha=0.25)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    lines = [*axes[1][0].get_lines(), Line2D([], [], color=GREY, linewidth=1, linestyle="--", label="p95")]
    figure.legend(handles=lines, loc="upper right", bbox_to_anchor=(0.9, 0.975), frameon=False, fontsize=9, ncols=9)
    figure.suptitle(title, x=0.01, y=0.96, ha="left", fontsize=13, fontweight="bold")
    save_figure(figure, path, cropped=True)


def draw_by_users(variants: Mapping[str, Seconds], path: Path, title: str) -> None:
    """Write a picture of one length: requests/s and the p95 of the latency against users, a line for each variant.

    A point is the mean over the seconds with that number of users; the name of a line stands at its end.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4))
    axes = figure.subplots(1, 2, gridspec_kw={"wspace": 0.55})
    columns = (("requests/s", "requests_per_second"), ("p95 latency, ms", "p95"))
    for axis, (label, key) in zip(axes, columns, strict=True):
        for color, (variant, seconds) in zip(COLORS, variants.items(), strict=False):
            users = sorted({int(row["users"]) for row in seconds if row["users"]})
            means = [statistics.fmean(row[key] for row in seconds if row["users"] == count) for count in users]
            axis.plot(users, means, "o-", color=color, linewidth=1.6, markersize=4)
            axis.annotate(
                variant, (users[-1], means[-1]), xytext=(6, 0), textcoords="offset points", va="center", color=color
            )
        axis.set_xlabel("users")
        axis.set_title(label, loc="left", fontsize=11)
        axis.set_ylim(0)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, x=0.01, y=1.06, ha="left", fontsize=13, fontweight="bold")
    save_figure(figure, path, cropped=True)


def _lines(axes: Sequence[Any], variant: str, seconds: Seconds, color: str) -> None:
    users, throughput, latency, batch, queue = axes
    times = [row["t"] for row in seconds]

    def series(name: str) -> list[float]:
        return [row[name] for row in seconds]

    users.step(times, series("users"), where="pre", color=GREY, linewidth=1.2)
    throughput.plot(times, series("requests_per_second"), color=color, linewidth=1.6, label=variant)
    latency.plot(times, series("p50"), color=color, linewidth=1.6)
    latency.plot(times, series("p95"), color=color, linewidth=1, linestyle="--")
    batch.plot(times, series("mean_batch"), color=color, linewidth=1.6)
    queue.plot(times, series("queue_ms"), color=color, linewidth=1.6)
