"""Why Triton's counters and what the model did differ, in a sentence."""

from __future__ import annotations

from typing import Any

from labctl.measure.evidence.metrics import ModelCounters, Snapshot
from labctl.watch.counters import Counters


def counted(triton: ModelCounters, steps: int, batch: int, ended: int = 0, first: float = 0.0) -> dict[str, Any]:
    counters = Counters()
    counters.snapshot(Snapshot({"m": ModelCounters()}))
    line = {"model": "m", "ids": ["1"] * batch, "kind": "step"}
    counters.count([line] * (steps - 1) + [{**line, "ended": {str(n): "length" for n in range(ended)}}])
    if first:
        counters.first_token("m", first)
    counters.snapshot(Snapshot({"m": triton}))
    (row,) = counters.rows()
    return row


def test_a_batch_that_runs_to_its_end_is_one_execution() -> None:
    row = counted(ModelCounters(succeeded=4, inferences=4, exec_count=1), steps=40, batch=4, ended=4)
    assert row["notes"] == ["Triton counts a batch as one execution; the model made 40 steps in each."]


def test_a_loop_of_the_models_own_makes_batches_that_triton_does_not_see() -> None:
    triton = ModelCounters(succeeded=6, inferences=6, exec_count=6, request_us=6 * 2_800)
    row = counted(triton, steps=30, batch=3, ended=6, first=2.55)
    assert row["notes"] == [
        "Triton sees batches of 1.0; in the model's own loop 3.0 run together.",
        "Triton calls a request done after 2.8 ms, when it has handed it over; its first token came after 2.55 s.",
    ]


def test_a_request_that_is_rescheduled_is_counted_each_time() -> None:
    row = counted(ModelCounters(succeeded=80, inferences=80, exec_count=40), steps=40, batch=2, ended=2)
    assert row["notes"] == ["Triton counts a request each time that the model gives it back to be scheduled again."]
