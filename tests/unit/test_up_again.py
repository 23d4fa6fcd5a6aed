"""`up` of a stack that runs already compares all that was asked; what it shows of a log is what matters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.listener import Silent
from labctl.manifest.schema import Lab
from labctl.orchestrator import replicas
from labctl.orchestrator import restart as restarting
from labctl.orchestrator import running as log_of
from labctl.orchestrator.clock import Clock
from labctl.orchestrator.plan import Choices
from labctl.orchestrator.running import tail
from labctl.orchestrator.session import Session
from labctl.orchestrator.up import Up, UpOptions, bring_up, up
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Endpoints, Record
from labctl.runtimes.compose import ComposeRuntime

ROOT = Path(__file__).resolve().parents[2]
STACK = "inflight-batching"
ENDPOINTS = Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


def options(release: str = "", templates: Path | None = None, expose: bool = False) -> UpOptions:
    return UpOptions(Choices("gpu", {}, release, templates), expose=expose)


def running(session: Session, monkeypatch: pytest.MonkeyPatch, given: UpOptions) -> None:
    """The stack is up, with these options."""
    lab, name = session.catalog.stack(STACK)
    runtime = ComposeRuntime(session.workspace)
    record = bring_up(session, lab, name, given, runtime, ENDPOINTS).record
    monkeypatch.setattr(Session, "find", lambda self, stack: (runtime, record))
    monkeypatch.setattr(Session, "running", lambda self: [(runtime, record)])
    monkeypatch.setattr(replicas, "wait_ready", lambda *arguments, **more: None)


def test_the_same_again_is_already_up(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    running(session, monkeypatch, options("0.17.0"))
    assert up(session, *session.catalog.stack(STACK), options("0.17.0")).already


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (options("0.11.0"), "--release: it runs with 0.17.0, you asked for 0.11.0"),
        (options("0.17.0", expose=True), "address (--expose): it runs with 127.0.0.1, you asked for 0.0.0.0"),
    ],
)
def test_another_release_or_address_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch, asked: UpOptions, said: str
) -> None:
    running(session, monkeypatch, options("0.17.0"))
    with pytest.raises(LabError, match="already up with other settings") as caught:
        up(session, *session.catalog.stack(STACK), asked)
    assert said in caught.value.details


def test_run_and_bench_do_not_begin_on_a_stack_whose_clock_stands_still(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(session, monkeypatch, options("0.17.0"))
    clock = Clock(session.workspace.run_dir(STACK), ("tensorrt_llm",))
    clock.pause()
    with pytest.raises(LabError, match="its clock stands still") as caught:
        up(session, *session.catalog.stack(STACK), options("0.17.0"))
    assert caught.value.remedy == f"labctl clock {STACK} run"
    clock.run()
    assert up(session, *session.catalog.stack(STACK), options("0.17.0")).already


def test_other_templates_are_refused(session: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    running(session, monkeypatch, options("0.17.0"))
    with pytest.raises(LabError, match="already up") as caught:
        up(session, *session.catalog.stack(STACK), options("0.17.0", tmp_path))
    assert caught.value.details == (f"--templates: it runs with none, you asked for {tmp_path}",)


def test_what_is_asked_travels_with_the_server(session: Session) -> None:
    lab, name = session.catalog.stack(STACK)
    record = bring_up(
        session, lab, name, options("0.17.0", expose=True), ComposeRuntime(session.workspace), ENDPOINTS
    ).record
    assert Record.from_json(record.to_json()) == record
    assert (record.release, record.bind) == ("0.17.0", "0.0.0.0")
    older = record.to_json().replace('"bind": "0.0.0.0", ', "")
    assert Record.from_json(older) == replace(record, bind="127.0.0.1")


def test_a_restart_asks_for_all_that_was_asked(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    given = UpOptions(expose=True, client_shm=True, supervise=3, replicas=2, balance="l7", ports="1,2,3")
    lab, name = session.catalog.stack("iterative")
    runtime = ComposeRuntime(session.workspace)
    record = bring_up(session, lab, name, given, runtime, ENDPOINTS).record
    asked = []

    def up_again(session: Session, lab: Lab, stack: str, options: UpOptions) -> Up:
        asked.append(replace(options, choices=given.choices, runtime=given.runtime))
        return Up(runtime, record)

    monkeypatch.setattr(Session, "find", lambda self, stack: (runtime, record))
    monkeypatch.setattr(restarting, "heal", lambda *arguments: False)
    monkeypatch.setattr(restarting, "down", lambda *arguments: None)
    monkeypatch.setattr(restarting, "up", up_again)
    restarting.restart(session, lab, name)
    assert asked == [given]


class Drained:
    """A runtime whose balancer is told who drains; looking at it is interrupted."""

    def __init__(self) -> None:
        self.draining: Sequence[int] = ()

    def spread(self, record: Record, draining: Sequence[int] = ()) -> None:
        self.draining = draining

    def seen(self, record: Record) -> None:
        assert self.draining == [2]
        raise KeyboardInterrupt


def test_a_replica_whose_draining_is_interrupted_gets_requests_again(session: Session) -> None:
    runtime: Any = Drained()
    record = Record("s", "l", "local", "cpu", {}, ["m"], ENDPOINTS, balance="l7")
    with pytest.raises(KeyboardInterrupt):
        replicas.drain(runtime, record, [2])
    assert runtime.draining == ()


class Log:
    """A runtime of which only the log is asked."""

    def logs(self, stack: str, number: int = 0) -> Iterator[str]:
        yield "E1122 Failed to initialize NVML: driver not loaded"
        yield 'E1122 server.cc:241] "CudaDriverHelper has not been initialized."'
        yield "E1122 the real reason"


def test_what_is_said_of_a_gpu_is_not_shown_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(log_of, "GPU_DEVICE", tmp_path / "none")
    assert tail(Log(), "s") == ["E1122 the real reason"]  # type: ignore[arg-type]
    monkeypatch.setattr(log_of, "GPU_DEVICE", tmp_path)
    assert len(tail(Log(), "s")) == 3  # type: ignore[arg-type]


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def images(*minutes: int) -> Sequence[Action[str]]:
    return [Action("image", lambda listener: "", minutes=each) for each in minutes]


@pytest.mark.parametrize(("wanted", "count"), [("auto", 2), ("compose", 1)])
def test_images_that_are_made_first_are_told_with_their_time_and_the_way_without(
    session: Session, wanted: str, count: int
) -> None:
    listener = Notes()
    own = replace(session, listener=listener)
    own.say_how_long(images(0), wanted, "cpu")
    assert listener.notes == []
    own.say_how_long(images(4, 4, 0), wanted, "cpu")
    assert listener.notes[0] == "2 images are made first: about 8 minutes, once"
    assert len(listener.notes) == count
    assert all("--runtime local" in note for note in listener.notes[1:])
