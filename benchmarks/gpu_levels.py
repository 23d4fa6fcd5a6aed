"""A check of how times are predicted, on figures of one H100: fit on all levels but one, and print the error of that.

The same 98 requests were sent at once with at most 8, 16, 64 or 98 in flight, statically and in flight, in three modes
(`data/h100_levels.jsonl`: Llama-2-7B's shape, vLLM 0.26.0, alone and behind Triton; docs/operate/gpu.md). A level's
steps are exact by a replay of the scheduler, so here they are given. Its time is a cost for each step, and one for the
work of the requests, which is the same at each level: least squares of relative errors, none negative.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labkit.tables import format_table
from labsched.replay.fitting import non_negative

DATA = Path(__file__).parent / "data" / "h100_levels.jsonl"
LEAST = 3  # levels of a group: two are fitted


def run(options: object = None) -> dict[str, Any]:
    """Print and return the relative error of each level, by group."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in DATA.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        groups[f"{row['what']}, {row['mode']}"].append(row)
    found, rows = {}, []
    for name, levels in groups.items():
        if len(levels) < LEAST:
            continue
        for number, level in enumerate(levels):
            others = levels[:number] + levels[number + 1 :]
            seconds = predicted(others, level)
            error = seconds / level["total_s"] - 1
            found[f"{name}, {level['run']}"] = error
            fitted = " ".join(other["run"].replace("inflight", "in-flight") for other in others)
            rows.append((name, level["run"], fitted, f"{seconds:.2f}", f"{level['total_s']:.2f}", f"{error:+.1%}"))
    print(format_table(rows, ("group", "level", "fitted on", "predicted s", "measured s", "error"), right=(3, 4, 5)))
    middle = float(np.median(np.abs([*found.values()])))
    print(f"median error {middle:.1%} of {len(found)} levels")
    return {"error": found, "median": middle}


def predicted(levels: Sequence[Mapping[str, Any]], other: Mapping[str, Any]) -> float:
    """Seconds of another level by what these say."""
    x, y = np.array([_features(one) for one in levels]), np.array([one["total_s"] for one in levels])
    costs = non_negative(x / y[:, None], np.ones(len(y)))
    return float(np.asarray(_features(other)) @ costs)


def _features(level: Mapping[str, Any]) -> tuple[float, float]:
    return float(level["steps"]), float(level["requests"] * level["mean_in"])
