"""Lab 01's table: what its columns are called is what they hold."""

from __future__ import annotations

import runpy
from pathlib import Path

from labkit import stats
from labkit.records import RequestRecord

REPORT = Path(__file__).resolve().parents[2] / "labs" / "01-sequence-batcher" / "report.py"


def test_the_p99_of_a_step_is_one_of_single_steps_and_not_of_each_clients_mean() -> None:
    even = [(0.01 * number, "a") for number in range(1, 101)]
    uneven = [*even[:50], *((at + 0.5, text) for at, text in even[50:])]  # one step took half a second longer
    records = [RequestRecord(str(n), "m", "p", start=0.0, end=times[-1][0]) for n, times in enumerate((even, uneven))]
    for record, times in zip(records, (even, uneven), strict=True):
        record.responses = times
    phase = {
        "strategy": "direct",
        "generator": "onnx",
        "kept": 1.0,
        "mean_batch": 1.0,
        "mean_empty": 0.0,
        "generator_mean_batch": 1.0,
        "metrics": stats.metrics(records),
    }
    names = runpy.run_path(str(REPORT))
    cells = dict(zip(names["HEADER"], names["row"](phase), strict=True))
    assert cells["step p50 ms"] == cells["p99 ms"] == "10.00", "one of 198 steps"
