"""The picture of `labctl explain`: what the times at p50, p95 and p99 consist of, and the worst second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.evidence.timeline import COLORS, save_figure
from labsched.explain import findings
from labsched.explain.causes import ExplainedRequest
from labsched.replay.recording import Recording

SPAN_S = 1.0
MOST_ROWS = 12  # requests in the timeline that computed, and as many that only waited: those that waited longest
WAITS = "#c8c8c8"


def draw_explanation(
    found: Sequence[ExplainedRequest],
    recording: Recording,
    path: Path,
    title: str,
    names: Mapping[str, str] | None = None,
) -> None:
    """Write it: a stacked bar for each percentile of TTFT and of TPOT, and below them a row for each request that was
    in the worst second, with a bar for each step in which it computed or waited.

    Args:
        names: what a person calls the requests, by their names in the log.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8))
    grid = figure.add_gridspec(2, 2, hspace=0.55, height_ratios=(1, 1.2))
    having = {metric: some for metric in findings.TOKEN_TIMES if (some := findings.everybody(found).of(metric))}
    rows = {metric: findings.cause_table(some, metric)[1] for metric, some in having.items()}
    parts = dict.fromkeys(part for stacked in rows.values() for part, _ in stacked[:-1])
    colors = {part: COLORS[number % len(COLORS)] for number, part in enumerate(parts)}
    for column, (metric, stacked) in enumerate(rows.items()):
        _bars(figure.add_subplot(grid[0, column]), stacked, metric, colors)
    _draw_worst_second(figure.add_subplot(grid[1, :]), recording, names or {})
    figure.suptitle(title, x=0.01, y=0.98, ha="left", fontsize=13, fontweight="bold")
    save_figure(figure, path, cropped=True)


def _bars(axis: Any, rows: Sequence[tuple[str, list[float]]], metric: str, colors: Mapping[str, str]) -> None:
    left = [0.0] * len(findings.RANKS)
    names = [f"p{percent}" for percent in findings.RANKS]
    for part, values in rows[:-1]:
        axis.barh(names, values, left=left, color=colors[part], label=part)
        left = [before + value for before, value in zip(left, values, strict=True)]
    axis.invert_yaxis()
    axis.set_title(f"{metric}, ms", loc="left", fontsize=11)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.1), ncols=3)
    axis.spines[["top", "right"]].set_visible(False)


def _draw_worst_second(axis: Any, recording: Recording, names: Mapping[str, str]) -> None:
    began = worst_second(recording)
    steps = [step for step in recording.steps if step.over > began and step.began < began + SPAN_S]
    waited: dict[str, float] = {}
    for step in steps:
        for name in step.waiting:
            waited[name] = waited.get(name, 0.0) + step.over - step.began
    computed = list(dict.fromkeys(name for step in steps for name in step.ids))[:MOST_ROWS]
    longest = sorted(waited.keys() - {*computed}, key=lambda name: (-waited[name], name))[:MOST_ROWS]
    shown = [*computed, *longest]
    colors = {"p": COLORS[0], "d": COLORS[2], "": WAITS}
    for place, name in enumerate(shown):
        spans: dict[str, list[tuple[float, float]]] = {}  # when each began, and for how long
        for step in steps:
            if name in step.ids or name in step.waiting:
                letter = step.phase[step.ids.index(name)] if name in step.ids else ""
                spans.setdefault(letter, []).append((step.began, step.over - step.began))
        for letter, some in spans.items():
            axis.broken_barh(some, (place - 0.4, 0.8), color=colors[letter], linewidth=0, snap=True)
    axis.set_yticks(range(len(shown)), [names.get(name, name) for name in shown], fontsize=7)
    axis.invert_yaxis()
    axis.set_xlim(began, min(began + SPAN_S, max(step.over for step in steps)))
    axis.set_xlabel("seconds since the first request", fontsize=9)
    axis.set_title("when requests waited longest", loc="left", fontsize=11)
    for letter, words in (("p", "prefill"), ("d", "decode"), ("", "waits")):
        axis.barh(0, 0, color=colors[letter], label=words)
    axis.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3)
    axis.spines[["top", "right"]].set_visible(False)


def worst_second(recording: Recording) -> float:
    """When the second begins (seconds since the first arrival) in which requests waited longest, taken together."""
    best, worst, first, sum_s = recording.steps[0].began, -1.0, 0, 0.0
    waits = [(step.over - step.began) * len(step.waiting) for step in recording.steps]
    for last, step in enumerate(recording.steps):
        sum_s += waits[last]
        while step.over - recording.steps[first].began > SPAN_S and first < last:
            sum_s -= waits[first]
            first += 1
        if sum_s > worst:
            best, worst = recording.steps[first].began, sum_s
    return best
