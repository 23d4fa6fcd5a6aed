"""`up` of a stack that runs already compares all that was asked; what it shows of a log is what matters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error
from noting import Noting

from labctl.clock import Clock
from labctl.lab import Lab
from labctl.listener import Listener
from labctl.options import OF_PLAN, Options
from labctl.plan import Plan
from labctl.replicas import restart as restarting
from labctl.runtimes import balancer, images
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Endpoints, Record
from labctl.stack import faults, replicas
from labctl.stack.session import Session
from labctl.stack.stack import PlannedStack, RunningStack, record_of
from labctl.stack.up import up
from labctl.workspace import Workspace
from labserve.observe.clock import StepClock

STACK = "inflight-batching"
ENDPOINTS = Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


USUAL = Options("gpu", set={}, gpu="0")
ASKED = Options(
    set={"max_batch_size": 3}, runtime="compose", ports="1,2,3", timeout=7.5, client_shm=True, replicas=2, balance="l7"
)


def record_under(session: Session, given: Options, stack: str = STACK) -> Record:
    """The record of a stack that runs with these options."""
    lab, name = session.catalog.stack(stack)
    return record_of(PlannedStack(session, lab, name, ComposeRuntime(session.workspace), given), ENDPOINTS)


@pytest.fixture
def running(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack is up, with the usual options."""
    runtime = ComposeRuntime(session.workspace)
    record = record_under(session, USUAL)
    monkeypatch.setattr(RunningStack, "find", lambda session, stack: RunningStack.of(session, None, runtime, record))
    monkeypatch.setattr(Session, "running", lambda self: [record])
    monkeypatch.setattr(replicas, "wait_ready", lambda *arguments, **more: None)


@pytest.mark.usefixtures("running")
def test_the_same_again_is_already_up(session: Session) -> None:
    assert up(session, *session.catalog.stack(STACK), USUAL).already


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"gpu": "1"}, "--gpu: it runs with 0, you asked for 1"),
        ({"templates": Path("/theirs")}, "--templates: it runs with none, you asked for /theirs"),
    ],
)
def test_another_gpu_or_template_is_refused(session: Session, asked: dict[str, Any], said: str) -> None:
    with lab_error("stack-up-otherwise") as caught:
        up(session, *session.catalog.stack(STACK), replace(USUAL, **asked))
    assert said in caught.value.details


@pytest.mark.usefixtures("running")
def test_fault_29_run_and_bench_do_not_begin_on_a_stack_whose_clock_stands_still(session: Session) -> None:
    run_dir = session.workspace.folder(STACK).run_dir()
    clock = Clock(run_dir, ("tensorrt_llm",))
    clock.pause()
    StepClock(str(run_dir), "tensorrt_llm", "0")
    with lab_error("clock-stopped") as caught:
        up(session, *session.catalog.stack(STACK), USUAL)
    assert caught.value.remedy == f"labctl clock {STACK} run"
    clock.run()
    assert up(session, *session.catalog.stack(STACK), USUAL).already


def test_a_server_is_on_record_before_it_starts(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def start(self: LocalRuntime, listener: Listener, plan: Plan, record: Record) -> None:
        kept.append((session.remembered(record.stack), record))
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalRuntime, "start", start)
    with pytest.raises(KeyboardInterrupt):
        up(session, *session.catalog.stack("iterative"), Options(runtime="local", ports="auto"))
    ((found, asked),) = kept
    assert found == asked


@pytest.mark.parametrize("alive", [True, False])
def test_a_restart_asks_for_all_that_was_asked(session: Session, monkeypatch: pytest.MonkeyPatch, alive: bool) -> None:
    """Also of a stack whose server has died, as it does when its engine is dead."""
    usual = Options()
    assert [
        name for name, value in vars(ASKED).items() if value == getattr(usual, name) and name not in OF_PLAN
    ] == [], "an option that this test does not know would be lost"
    lab, name = session.catalog.stack("iterative")
    runtime = ComposeRuntime(session.workspace)
    record = Record.from_json(record_under(session, ASKED, name).to_json())
    asked = []

    def up_again(session: Session, lab: Lab, stack: str, options: Options) -> RunningStack:
        asked.append(options)
        return RunningStack.of(session, lab, runtime, record)

    found = RunningStack.of(session, None, runtime, record) if alive else None
    monkeypatch.setattr(RunningStack, "find", lambda session, stack: found)
    monkeypatch.setattr(Session, "remembered", lambda self, stack: record)
    monkeypatch.setattr(restarting, "heal", lambda *arguments: False)
    monkeypatch.setattr(restarting, "down", lambda *arguments: None)
    monkeypatch.setattr(restarting, "up", up_again)
    doors: list[int] = []
    monkeypatch.setattr(restarting, "door_url", lambda *arguments: "http://127.0.0.1:9123/v1")
    monkeypatch.setattr(restarting, "start_door_server", lambda space, of, port, listener: doors.append(port))
    restarting.restart(session, lab, name)
    assert doors == [9123]
    (again,) = asked
    assert again.set["max_batch_size"] == 3
    assert replace(again, set=ASKED.set) == ASKED


@pytest.mark.parametrize(("profile", "asked", "seconds"), [("cpu", None, 180), ("gpu", None, 900), ("gpu", 5.0, 5)])
def test_a_restart_and_a_new_replica_wait_as_long_as_up_did(
    session: Session, profile: str, asked: float | None, seconds: float
) -> None:
    given = Options(profile, timeout=asked)
    record = record_under(session, given)
    assert Record.from_json(record.to_json()).asked.patience == given.patience == seconds


def test_a_replica_whose_draining_is_interrupted_gets_requests_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Sequence[int]] = []

    def looked_at(workspace: Workspace, record: Record) -> None:
        assert told == [[2]]
        raise KeyboardInterrupt

    monkeypatch.setattr(balancer, "assign_servers", lambda workspace, record, draining=(): told.append(draining))
    monkeypatch.setattr(balancer, "upstreams", looked_at)
    record = Record("s", "l", "local", "cpu", {}, ["m"], ENDPOINTS, balance="l7")
    with pytest.raises(KeyboardInterrupt):
        replicas.drain(session, record, [2])
    assert told[-1] == ()


class Log:
    """A runtime of which only the log is asked."""

    def logs(self, stack: str, part: int | None = None) -> Iterator[str]:
        yield "E1122 Failed to initialize NVML: driver not loaded"
        yield 'E1122 server.cc:241] "CudaDriverHelper has not been initialized."'
        yield "E1122 the real reason"


def test_what_is_said_of_a_gpu_is_not_shown_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(faults, "GPU_DEVICE", tmp_path / "none")
    assert faults.tail(Log(), "s") == ["E1122 the real reason"]  # type: ignore[arg-type]
    monkeypatch.setattr(faults, "GPU_DEVICE", tmp_path)
    assert len(faults.tail(Log(), "s")) == 3  # type: ignore[arg-type]


def test_images_that_are_made_first_are_told_with_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Noting()
    known = {"made"}
    monkeypatch.setattr(images, "exists", lambda image: image in known)
    monkeypatch.setattr(images, "_build", lambda listener, name, build: known.add(name))
    build: Any = None
    images.build_missing_images(listener, {"made": build})
    assert listener.notes == []
    images.build_missing_images(listener, {"made": build, "one": build, "two": build})
    assert listener.notes == ["2 images are made first: about 8 minutes, once"]
