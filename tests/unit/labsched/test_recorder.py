"""What the world sees of the scheduler when it has nothing to compute: gauges at rest, and a clock that has gone on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_backend import METRICS

from labctl.clock import Clock
from labsched.counting import CountingEngine
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.policy import Policy
from labsched.scheduler import Scheduler
from labserve.inflight.engine_driver import engine_recorder
from labserve.observe.recorder import Recorder
from labserve.request import ServedRequest as Request

MODEL = "recorded"
Made = Callable[[type[Scheduler]], tuple[Recorder, Scheduler, Request]]


class Closed(Scheduler):
    """It admits nobody."""

    places = 0


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Made]:
    """A scheduler with one request, and its recorder."""
    opened: list[Recorder] = []

    def make(kind: type[Scheduler]) -> tuple[Recorder, Scheduler, Request]:
        engine, features, kv = CountingEngine(4, finishes=True), Features(max_num_tokens=4), KVBudget(8, 4)
        engine.scheduler = scheduler = kind(engine, kv, Policy.MAX_UTILIZATION, 2, False, features)
        setup: Any = SimpleNamespace(
            scheduler=scheduler,
            kv=kv,
            features=features,
            shape=SimpleNamespace(context=32, vocabulary=50),
            own=None,
            in_force=[],
            described="",
        )
        config = json.dumps({"parameters": {"run_dir": {"string_value": str(tmp_path)}}})
        args = {"model_name": MODEL, "model_instance_name": f"{MODEL}_0", "model_config": config}
        recorder = engine_recorder(args, setup)
        opened.append(recorder)
        request = Request("a", [1, 2, 3], 9, tenant="t", number=1)
        scheduler.submit(request)
        recorder.arrived(request, 0.0)
        return recorder, scheduler, request

    yield make
    for recorder in opened:
        recorder.close()


def flush(recorder: Recorder) -> None:
    """Return when the log has all lines, and the server all metrics."""
    recorder.writer.call(recorder._gauges.flush)
    recorder.settle()


def test_a_model_whose_last_request_left_between_two_steps_shows_nobody_and_no_memory(
    recorded: Made, tmp_path: Path
) -> None:
    recorder, scheduler, request = recorded(Scheduler)
    recorder.record(scheduler.step())
    flush(recorder)
    assert (METRICS[f"labs_running {MODEL}"].total, METRICS[f"labs_kv_blocks_used {MODEL}"].total) == (1, 1)
    scheduler.cancel(request)
    recorder.ended(request)
    scheduler.step()  # what was dropped is freed by it
    assert recorder.ready(scheduler.plan())
    flush(recorder)
    last = json.loads((tmp_path / f"steps-{MODEL}-0.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["ended"], last["seats"]) == ("change", {"a": "cancelled"}, ["", ""])
    shown = {
        name: METRICS[f"labs_{name} {MODEL}"].total for name in ("running", "waiting", "kv_blocks_used", "kv_usage")
    }
    assert not any(shown.values()), shown


def test_a_step_in_which_requests_only_wait_is_over_for_the_clock(recorded: Made, tmp_path: Path) -> None:
    recorder, scheduler, _ = recorded(Closed)
    clock = Clock(tmp_path, (MODEL,))
    clock.pause()
    assert not recorder.ready(scheduler.plan())
    (held,) = clock.states(MODEL)
    assert (held["state"], held["ids"], held["waiting"]) == ("held", [], ["a"])
    clock._write({MODEL: {"mode": "pause", "grant": "g", "steps": 1}})  # as `labctl clock step` does, and then waits
    assert recorder.ready(scheduler.plan())
    recorder.record(scheduler.step())
    (over,) = clock.states(MODEL)
    assert (over["state"], over["grant"], over["steps"], over["left"]) == ("idle", "g", 1, 1)


def test_a_step_that_failed_is_over_for_the_clock(recorded: Made, tmp_path: Path) -> None:
    recorder, scheduler, _ = recorded(Scheduler)
    clock = Clock(tmp_path, (MODEL,))
    clock._write({MODEL: {"mode": "pause", "grant": "g", "steps": 1}})
    assert recorder.ready(scheduler.plan())
    recorder.gave_up()
    (over,) = clock.states(MODEL)
    assert (over["state"], over["steps"], over["left"]) == ("idle", 1, 0)


def test_the_log_and_the_metrics_say_what_each_step_did(recorded: Made, tmp_path: Path) -> None:
    recorder, scheduler, _ = recorded(Scheduler)
    scheduler.kv = scheduler.memory.kv = KVBudget(5, 4)
    for number in (2, 3):
        request = Request("a", [1, 2, 3], 9, number=number)  # by the same name
        scheduler.submit(request)
        recorder.arrived(request, 0.0)
    said: list[dict[str, Any]] = []
    while not scheduler.idle:
        step = scheduler.step()
        for one in step.finished:
            recorder.ended(one)
        if not step.batch:
            continue
        said.append(
            {
                "ids": step.ids,
                "made": [sum(len(new) for one, new in step.produced if one is request) for request in step.requests],
                "kv_blocks_used": step.kv_blocks_used,
                "joined": step.joined,
                "evicted": step.evicted,
                "ended": {request.name: "length" for request in step.finished},
                "waiting": [*step.waiting],
                "seats": list(scheduler.slots.names),
            }
        )
        recorder.record(step)
    recorder.record(scheduler.step())
    flush(recorder)
    lines = [json.loads(line) for line in (tmp_path / f"steps-{MODEL}-0.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    written = [
        {name: line.get(name, type(value)()) for name, value in one.items()}
        for one, line in zip(said, steps, strict=True)
    ]
    assert written == said
    assert any(0 in one["made"] for one in said), "a piece of a prompt makes no token"
    totals = {
        name: METRICS[f"labs_{name}_total {MODEL}"].total for name in ("steps", "tokens", "admissions", "preemptions")
    }
    assert totals == {
        "steps": len(said),
        "tokens": 27,
        "admissions": sum(len(one["joined"]) for one in said),
        "preemptions": sum(len(one["evicted"]) for one in said),
    }
    assert totals["preemptions"] > 0
    assert METRICS[f"labs_running {MODEL}"].total == 0, "the last one has ended"
    again = Request("a", [1], 1, number=4)
    recorder.arrived(again, 0.0)
    assert again.name == "a", "the name is free again"


def test_a_request_that_takes_a_stopped_ones_id_at_once_keeps_its_own_account(recorded: Made, tmp_path: Path) -> None:
    recorder, scheduler, stopped = recorded(Scheduler)
    recorder.record(scheduler.step())
    scheduler.cancel(stopped)
    recorder.ended(stopped)
    again = Request(stopped.id, [1, 2, 3], 9, number=2)  # both in one `receive` of the driver
    scheduler.submit(again)
    recorder.arrived(again, 0.0)
    while not scheduler.idle:
        step = scheduler.step()
        for one in step.finished:
            recorder.ended(one)
        recorder.record(step)
    flush(recorder)
    assert len(METRICS[f"labs_inter_token_latency_seconds {MODEL}"].observed) == len(again.output) - 1
