"""The exercise server's end: by force where it must be, from any thread, and with one watcher at most."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lab_errors import lab_error

from labctl.learn import idle, server
from labctl.learn.exercise import find_exercise, find_exercises
from labctl.listener import Listener, Silent
from labctl.manifest.catalog import Catalog, load_catalog
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Endpoints
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.evidence import metrics

ROOT = Path(__file__).resolve().parents[2]


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


def test_a_watcher_leaves_the_server_to_a_newer_one(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def up(stack: str) -> bool:
        return True

    monkeypatch.setattr(Session, "open", lambda _: SimpleNamespace(workspace=session.workspace, may_run=up))
    used = session.workspace.folder(server.STACK).used_file
    used.parent.mkdir(parents=True)
    used.write_text("newer")
    older = threading.Thread(target=idle.main, args=("older",), daemon=True)
    older.start()
    older.join(timeout=60)
    assert not older.is_alive()


def test_the_next_server_comes_up_on_the_runtime_that_was_asked_for_until_the_server_is_stopped(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner who said ``--runtime local`` once does not find the next exercise in a container."""
    there = Workspace(ROOT, ROOT / ".cache")
    begin = find_exercise(find_exercises(there, load_catalog(there)), "01a")
    wanted: list[str] = []

    def up(session: Session, lab: Any, stack: str, options: Any) -> None:
        wanted.append(options.runtime)
        raise LabError("that was enough", code="any")

    monkeypatch.setattr(server, "up", up)
    for runtime in ("auto", "local", "auto", "compose", "auto"):
        with lab_error("any"):
            server.serve_exercise(session, begin, {}, runtime)
    server.forget_runtime(session.workspace)
    with lab_error("any"):
        server.serve_exercise(session, begin, {}, "auto")
    assert wanted == ["auto", "local", "local", "compose", "compose", "auto"]


def test_a_server_that_died_between_two_checks_is_started_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may still be seen for a moment: what it does not answer is not for the learner to explain."""
    there = Workspace(ROOT, ROOT / ".cache")
    begin = find_exercise(find_exercises(there, load_catalog(there)), "01a")
    done: list[str] = []

    def up(session: Session, lab: Any, stack: str, options: Any) -> None:
        done.append("up")
        raise LabError("that was enough", code="any")

    dead = SimpleNamespace(endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))
    monkeypatch.setattr(Session, "find", lambda *_: SimpleNamespace(record=dead))
    monkeypatch.setattr(server, "_for_this", lambda *_: dead)
    monkeypatch.setattr(server, "find_edits", lambda *_: [])
    monkeypatch.setattr(server, "stop_exercise_server", lambda _: done.append("stop"))
    monkeypatch.setattr(server, "up", up)
    with lab_error("any"):
        server.serve_exercise(session, begin, {}, "auto")
    assert done == ["stop", "up"]


def test_the_watcher_does_not_stop_a_server_that_a_check_holds_or_has_just_used(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the learner would read that their model does not load."""
    stopped: list[bool] = []

    def stop(_: Session) -> bool:
        stopped.append(True)
        return True

    monkeypatch.setattr(server, "stop_exercise_server", stop)
    used = session.workspace.folder(server.STACK).used_file
    used.parent.mkdir(parents=True)
    used.write_text("mine")
    long_ago = time.time() - 3600
    os.utime(used, (long_ago, long_ago))
    with stack_lock(session.workspace, "exercises", "exercise check"):
        assert not idle._stop_if_idle(session, 1800)
        used.touch()  # as a check does, before anything else
    assert not idle._stop_if_idle(session, 1800) and not stopped
    os.utime(used, (long_ago, long_ago))
    assert idle._stop_if_idle(session, 1800) and stopped == [True]


def test_a_check_says_that_the_server_is_used_before_it_does_anything(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Workspace(ROOT, ROOT / ".cache")
    begin = find_exercise(find_exercises(there, load_catalog(there)), "01a")
    used = session.workspace.folder(server.STACK).used_file
    used.parent.mkdir(parents=True)
    used.write_text("mine")
    os.utime(used, (1.0, 1.0))
    ages: list[float] = []

    def find(*_: Any) -> None:
        ages.append(time.time() - used.stat().st_mtime)
        raise LabError("that was enough", code="any")

    monkeypatch.setattr(Session, "find", find)
    with lab_error("any"):
        server.serve_exercise(session, begin, {}, "auto")
    assert ages[0] < 3600


def test_a_server_with_a_request_of_an_earlier_check_is_not_used_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gave up leaves its request in Triton's queue, where the next check would count it."""
    there = Workspace(ROOT, ROOT / ".cache")
    begin = find_exercise(find_exercises(there, load_catalog(there)), "01a")
    done: list[str] = []
    record = SimpleNamespace(endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))
    waiting = metrics.Snapshot({"tokenizer": metrics.ModelCounters(pending=1)})

    def up(*_: Any) -> None:
        done.append("up")
        raise LabError("that was enough", code="any")

    monkeypatch.setattr(Session, "find", lambda *_: SimpleNamespace(record=record))
    monkeypatch.setattr(server, "_for_this", lambda *_: record)
    monkeypatch.setattr("labctl.triton.server_api.is_live", lambda _: True)
    monkeypatch.setattr(metrics, "scrape", lambda _: waiting)
    monkeypatch.setattr(server, "find_edits", lambda *_: [])
    monkeypatch.setattr(server, "stop_exercise_server", lambda _: done.append("stop"))
    monkeypatch.setattr(server, "up", up)
    with lab_error("any"):
        server.serve_exercise(session, begin, {}, "auto")
    assert done == ["stop", "up"]


@pytest.mark.parametrize(("id", "does"), [("07c", ["stop", "up"]), ("07b", [])])
def test_only_an_exercise_that_breaks_its_server_gets_a_new_one(
    session: Session, monkeypatch: pytest.MonkeyPatch, id: str, does: list[str]
) -> None:
    there = Workspace(ROOT, ROOT / ".cache")
    exercise = find_exercise(find_exercises(there, load_catalog(there)), id)
    done: list[str] = []
    record = SimpleNamespace(endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))

    def up(*_: Any) -> None:
        done.append("up")
        raise LabError("that was enough", code="any")

    monkeypatch.setattr(Session, "find", lambda *_: SimpleNamespace(record=record))
    monkeypatch.setattr(server, "_for_this", lambda *_: record)
    monkeypatch.setattr("labctl.triton.server_api.is_live", lambda _: True)
    monkeypatch.setattr(metrics, "scrape", lambda _: metrics.Snapshot())
    monkeypatch.setattr(server, "find_edits", lambda *_: [])
    monkeypatch.setattr(server, "stop_exercise_server", lambda _: done.append("stop"))
    monkeypatch.setattr(server, "up", up)
    with contextlib.suppress(LabError):
        server.serve_exercise(session, exercise, {}, "auto")
    assert done == does


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
        raise LabError(
            "m was not loaded within 60 s", code="model-load-slow"
        )  # what the load says when its server goes
