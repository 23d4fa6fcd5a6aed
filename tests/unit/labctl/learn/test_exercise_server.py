"""The exercise server: when a check uses it again, and its end, by force where it must be and from any thread."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exercise_cases import EXERCISES
from lab_errors import lab_error

from labctl.catalog import Catalog
from labctl.learn import server
from labctl.learn.exercise import find_exercise
from labctl.listener import Listener, Silent
from labctl.runtimes.record import Endpoints
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.workspace import Workspace
from labkit.client import metrics
from labkit.disk import atomic_write
from labkit.errors import LabError


class Stopping:
    """A runtime that notes with what force a stack was stopped."""

    def __init__(self) -> None:
        self.forced: list[bool] = []

    def stop(self, listener: Listener, stack: str, force: bool) -> None:
        self.forced.append(force)

    def leftovers(self, stack: str) -> list[str]:
        return []


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(Workspace(tmp_path, tmp_path / "cache"), Catalog(()), Silent())


def test_a_stack_is_taken_down_by_force_from_any_thread(session: Session) -> None:
    """`labctl learn` checks in a thread, where Ctrl-C can be neither heard nor ignored."""
    runtime: Any = Stopping()
    thread = threading.Thread(target=lambda: take_down(session, runtime, "exercise", force=True))
    thread.start()
    thread.join()
    assert runtime.forced == [True]


@pytest.mark.parametrize("loops", [False, True])
def test_a_model_known_to_loop_gets_no_time_to_end(session: Session, loops: bool) -> None:
    run_dir = session.workspace.folder("iterative").run_dir()
    run_dir.mkdir(parents=True)
    if loops:
        note = {"model": "m", "since": time.time() - 30, "steps": 3, "file": "model.py", "line": 7}
        (run_dir / "stuck-m.json").write_text(json.dumps(note))
    runtime: Any = Stopping()
    take_down(session, runtime, "iterative")
    assert runtime.forced == [loops]


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done about the exercise server, which never comes up."""
    done: list[str] = []

    def up(session: Session, lab: Any, stack: str, options: Any) -> None:
        done.append(f"up {options.runtime}")
        raise LabError("that was enough", code="any")

    def stop(session: Session) -> bool:
        done.append("stop")
        return True

    monkeypatch.setattr(server, "up", up)
    monkeypatch.setattr(server, "stop_exercise_server", stop)
    return done


def serve(session: Session, id: str = "01a", runtime: str = "local") -> None:
    with contextlib.suppress(LabError):
        server.serve_exercise(session, find_exercise(EXERCISES, id), {}, runtime)


@pytest.mark.parametrize(
    ("id", "live", "waiting", "replaced"),
    [
        ("07b", True, 0, False),
        # Its process may still be seen for a moment: what it does not answer is not for the learner to explain.
        ("07b", False, 0, True),
        # A client that gave up leaves its request in Triton's queue, where the next check would count it.
        ("07b", True, 1, True),
        ("07c", True, 0, True),
    ],
    ids=["as it should be", "it has died", "a request is left in it", "the exercise breaks its servers"],
)
def test_a_server_that_cannot_serve_a_check_is_replaced_and_another_is_used_again(
    session: Session,
    done: list[str],
    monkeypatch: pytest.MonkeyPatch,
    id: str,
    live: bool,
    waiting: int,
    replaced: bool,
) -> None:
    there = SimpleNamespace(endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))
    counted = metrics.Snapshot({"tokenizer": metrics.ModelCounters(pending=waiting)})
    monkeypatch.setattr(RunningStack, "find", lambda *_: SimpleNamespace(record=there))
    monkeypatch.setattr(server, "_for_this", lambda *_: there)
    if live:
        monkeypatch.setattr("labctl.triton.server_api.is_live", lambda _: True)
    monkeypatch.setattr(metrics, "scrape", lambda _: counted)
    monkeypatch.setattr(server, "find_edits", lambda *_: [])
    atomic_write(session.workspace.folder(server.STACK).clean_file, "")
    serve(session, id)
    assert done == (["stop", "up local"] if replaced else [])


@pytest.mark.parametrize(
    ("code", "replaced"), [("server-aborted", True), ("model-load-failed", False)], ids=["it aborted", "it refused"]
)
def test_a_server_that_aborts_when_it_loads_the_learners_model_is_started_once_more(
    session: Session, done: list[str], monkeypatch: pytest.MonkeyPatch, code: str, replaced: bool
) -> None:
    there = SimpleNamespace(endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))

    def reload(*_: Any, **__: Any) -> None:
        raise LabError("m was not loaded", code=code)

    monkeypatch.setattr(RunningStack, "find", lambda *_: SimpleNamespace(record=there))
    monkeypatch.setattr(server, "_for_this", lambda *_: there)
    monkeypatch.setattr("labctl.triton.server_api.is_live", lambda _: True)
    monkeypatch.setattr(server, "find_edits", lambda *_: ["m"])
    monkeypatch.setattr(server, "reload", reload)
    serve(session)
    assert done == (["stop", "up local"] if replaced else [])


def test_fault_25_a_load_that_does_not_come_back_ends_with_the_server_and_its_line(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton cannot end such a load, and would load nothing after it: the next check finds a new server."""
    run_dir = session.workspace.folder("exercise").run_dir()
    run_dir.mkdir(parents=True)
    ended = threading.Event()
    monkeypatch.setattr(server, "stop_exercise_server", lambda _: ended.set())
    note = {"model": "m", "since": time.time() - 30, "steps": 0, "file": "exercises/02a/model.py", "line": 9}
    with lab_error("model-not-loaded", "exercises/02a/model.py:9"), server._ended_by_a_loop(session):
        (run_dir / "stuck-m-0.json").write_text(json.dumps(note))
        assert ended.wait(60), "nobody ended the server"
        # What the load says when its server goes:
        raise LabError("m was not loaded within 60 s", code="model-load-slow")
