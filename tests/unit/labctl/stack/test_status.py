"""What ``labctl status`` tells of a server that says of itself that all is well."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fake_triton import FakeTriton, serve

from labctl import repository
from labctl.clock import Clock
from labctl.runtimes import balancer
from labctl.runtimes.base import Part, State
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack import status as told
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.triton import server_api
from labserve.observe.clock import StepClock

MODELS = ["simple-gpt2", "iterative-gpt2"]
COUNTERS = """nv_inference_exec_count{{model="iterative-gpt2",version="1"}} {executed}
nv_inference_pending_request_count{{model="iterative-gpt2",version="1"}} {pending}
"""


class FakeRuntime:
    """A runtime on which one stack is up."""

    name = "local"
    log: ClassVar[list[str]] = []

    def __init__(self, record: Record) -> None:
        self._record = record

    def state(self, record: Record) -> State:
        return State(self._record, frozenset(server.number for server in self._record.servers))

    def logs(self, stack: str, follow: bool = False, part: Part | None = None) -> list[str]:
        return self.log


@pytest.fixture
def fake() -> FakeTriton:
    fake = FakeTriton()
    fake.index = [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in MODELS]
    fake.metrics = COUNTERS.format(executed=5, pending=0)
    return fake


@pytest.fixture
def record(fake: FakeTriton, session: Session) -> Iterator[Record]:
    with serve(fake) as where:
        lab, _ = session.catalog.stack("iterative")
        settings = {key: setting.default["cpu"] for key, setting in lab.declared.items()}
        there = Endpoints(where, "127.0.0.1:1", where)
        yield Record("iterative", lab.folder, "local", "cpu", settings, MODELS, there)


@pytest.fixture
def status(session: Session, record: Record, monkeypatch: pytest.MonkeyPatch) -> Any:
    session.workspace.folder("iterative").path.mkdir(parents=True, exist_ok=True)
    session.remember(record)
    monkeypatch.setattr(Session, "runtime", lambda self, name: FakeRuntime(record))
    return lambda: told.status(session, "iterative")


def test_a_stack_whose_models_answer_is_ready(status: Any) -> None:
    assert status()["state"] == "ready"


def test_up_says_of_a_stack_that_it_has_seen_ready_what_status_says_of_it(
    status: Any, session: Session, record: Record
) -> None:
    runtime: Any = FakeRuntime(record)
    answered = tuple(server_api.model_states(record.endpoints.http))
    seen = replace(RunningStack.of(session, None, runtime, record), answered=answered)
    repository.render_repository(seen.plan.request)
    asked = status()
    assert asked.pop("clock") == {}
    assert told.ready_status(seen) == asked


def test_a_stack_whose_templates_are_gone_still_has_a_state(status: Any, tmp_path: Path) -> None:
    (tmp_path / "model_repos").unlink()
    assert status()["state"] == "ready"


@pytest.mark.parametrize(
    "words",
    [
        "Failed to process the request(s): Stub process 'simple-gpt2_0_0' is not healthy.",
        "internal error in simple-gpt2 (see the server's log, entry 3)",
    ],
)
def test_a_model_that_answers_the_tiny_question_with_any_error_is_unavailable_although_triton_calls_it_ready(
    fake: FakeTriton, status: Any, words: str
) -> None:
    fake.answers["/v2/models/simple-gpt2/generate_stream"] = (200, 'data: {"error": "' + words + '"}')
    shown = status()
    assert shown["state"] == "degraded"
    assert {row["name"]: (row["state"], row["reason"]) for row in shown["models"]} == {
        "simple-gpt2": ("UNAVAILABLE", words),
        "iterative-gpt2": ("READY", ""),
    }


def test_waiting_requests_of_which_none_is_executed_are_a_stall(fake: FakeTriton, status: Any) -> None:
    fake.metrics = COUNTERS.format(executed=5, pending=2)
    assert status()["state"] == "stalled"
    assert not any("generate" in call for call in fake.calls), "a stalled model was asked for one more answer"


def test_waiting_requests_are_no_stall_while_others_are_executed(fake: FakeTriton, status: Any) -> None:
    executed = itertools.count()

    def one_more() -> None:
        fake.metrics = COUNTERS.format(executed=next(executed), pending=2)

    fake.on_metrics = one_more  # type: ignore[method-assign]
    assert status()["state"] == "ready"


def test_a_stack_whose_clock_stands_still_is_paused_and_not_stalled(
    fake: FakeTriton, status: Any, tmp_path: Path
) -> None:
    fake.metrics = COUNTERS.format(executed=5, pending=2)
    run_dir = tmp_path / ".labs" / "iterative" / "run"
    Clock(run_dir, ("iterative-gpt2",)).pause()
    assert status()["state"] == "stalled", "no model has a clock"
    StepClock(str(run_dir), "iterative-gpt2", "0")
    fake.calls.clear()
    shown = status()
    assert shown["state"] == "paused"
    assert shown["clock"]["*"]["mode"] == "pause"
    assert not any("generate" in call for call in fake.calls), "a paused model was asked for an answer"
    Clock(run_dir, ("iterative-gpt2",)).run()
    assert status()["state"] == "stalled"


def test_a_replica_that_comes_or_goes_while_somebody_scales_does_not_make_the_others_degraded(
    session: Session, record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = [Replica(1, record.endpoints), Replica(2, Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))]
    balanced = replace(record, balance="l7", servers=servers)
    session.workspace.folder("iterative").path.mkdir(parents=True, exist_ok=True)
    session.remember(balanced)
    runtime = FakeRuntime(balanced)
    monkeypatch.setattr(balancer, "upstreams", lambda workspace, record: {})
    monkeypatch.setattr(Session, "runtime", lambda self, name: runtime)
    assert told.status(session, "iterative")["state"] == "degraded"
    for wanted, draining, state in ((2, False, "starting"), (1, True, "draining"), (1, False, "stopping")):
        view = {2: UpstreamHealth(draining=True)} if draining else {}
        monkeypatch.setattr(balancer, "upstreams", lambda *_, view=view: view)
        with stack_lock(session.workspace, "iterative", f"scale {wanted}"):
            shown = told.status(session, "iterative")
        assert (shown["state"], [one["state"] for one in shown["replicas"]]) == ("ready", ["ready", state])
        assert {row["state"] for row in shown["models"]} == {"READY"}
