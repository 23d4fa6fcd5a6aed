"""Why Triton's counters and what the model did differ, in a sentence."""

from __future__ import annotations

from labctl.pages.live.counters import LiveCounters
from labctl.pages.live.events import ModelCounts
from labkit.client.metrics import ModelCounters, Snapshot


def counted(triton: ModelCounters, steps: int, batch: int, ended: int = 0, first: float = 0.0) -> ModelCounts:
    counters = LiveCounters()
    counters.snapshot(Snapshot({"m": ModelCounters()}))
    line = {"model": "m", "ids": ["1"] * batch, "kind": "step"}
    counters.count([line] * (steps - 1) + [{**line, "ended": {str(n): "length" for n in range(ended)}}])
    if first:
        counters.first_response("m", first)
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
        "Triton calls a request done after 2.8 ms, when it has handed it over; its first response came after 2.55 s.",
    ]


def test_a_request_that_is_rescheduled_is_counted_each_time() -> None:
    row = counted(ModelCounters(succeeded=80, inferences=80, exec_count=40), steps=40, batch=2, ended=2)
    assert row["notes"] == ["Triton counts a request each time that the model gives it back to be scheduled again."]


def test_a_batch_that_is_larger_than_what_fits_is_tritons_and_says_why() -> None:
    row = counted(ModelCounters(succeeded=136, inferences=136, exec_count=40), steps=40, batch=2, ended=100)
    assert ("mean batch", "3.4", "2.0") in row["facts"]
    assert row["notes"] == [
        "Triton counts 3.4 requests in an execution, including requests that the model gives back unserved because "
        "they do not fit. A step serves 2.0."
    ]


def test_after_a_restart_both_sides_count_from_nothing() -> None:
    counters = LiveCounters()
    step = {"model": "m", "ids": ["1", "2"], "kind": "step"}
    counters.snapshot(Snapshot({"m": ModelCounters(exec_count=1000, inferences=1000)}))
    counters.count([step] * 500)
    counters.first_response("m", 9.0)
    counters.snapshot(Snapshot({"m": ModelCounters(exec_count=1500, inferences=2000)}))
    counters.snapshot(Snapshot({"m": ModelCounters(exec_count=1, inferences=1)}))  # a new server, asked once
    counters.count([step] * 7)
    counters.snapshot(Snapshot({"m": ModelCounters(exec_count=8, inferences=15)}))
    (row,) = counters.rows()
    assert row["facts"] == [
        ("requests done", "0", "–"),
        ("executions, steps", "7", "7"),
        ("mean batch", "2.0", "2.0"),
        ("waiting now", "0", "0"),
    ]
