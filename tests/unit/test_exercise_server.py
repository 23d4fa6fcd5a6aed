"""The exercise server's end: by force where it must be, from any thread, and with one watcher at most."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from labctl.errors import LabError
from labctl.learn import idle, server
from labctl.learn.exercise import find_all, named
from labctl.listener import Silent
from labctl.manifest.catalog import Catalog, load
from labctl.orchestrator.down import take_down
from labctl.orchestrator.session import Session
from labctl.runtimes.actions import Action
from labctl.runtimes.base import Endpoints
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]


class Stopping:
    """A runtime that notes with what force a stack was stopped."""

    def __init__(self) -> None:
        self.forced: list[bool] = []

    def stop(self, stack: str, force: bool) -> Action[None]:
        return Action("it goes", lambda listener: self.forced.append(force))

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
    run_dir = session.workspace.run_dir("iterative")
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

    monkeypatch.setattr(Session, "open", lambda _: SimpleNamespace(workspace=session.workspace, find=up))
    used = server.used(session.workspace)
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
    begin = named(find_all(there, load(there)), "01a")
    wanted: list[str] = []

    def up(session: Session, lab: Any, stack: str, options: Any) -> None:
        wanted.append(options.runtime)
        raise LabError("that was enough")

    monkeypatch.setattr(server, "up", up)
    for runtime in ("auto", "local", "auto", "compose", "auto"):
        with pytest.raises(LabError, match="enough"):
            server.serve(session, begin, {}, runtime)
    server.forget_runtime(session.workspace)
    with pytest.raises(LabError, match="enough"):
        server.serve(session, begin, {}, "auto")
    assert wanted == ["auto", "local", "local", "compose", "compose", "auto"]


def test_a_server_that_died_between_two_checks_is_started_again(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may still be seen for a moment: what it does not answer is not for the learner to explain."""
    there = Workspace(ROOT, ROOT / ".cache")
    begin = named(find_all(there, load(there)), "01a")
    done: list[str] = []

    def up(session: Session, lab: Any, stack: str, options: Any) -> None:
        done.append("up")
        raise LabError("that was enough")

    dead = SimpleNamespace(endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:1", "127.0.0.1:1"))
    monkeypatch.setattr(Session, "find", lambda *_: (None, dead))
    monkeypatch.setattr(server, "_for_this", lambda *_: dead)
    monkeypatch.setattr(server, "edited", lambda *_: [])
    monkeypatch.setattr(server, "stop", lambda _: done.append("stop"))
    monkeypatch.setattr(server, "up", up)
    with pytest.raises(LabError, match="enough"):
        server.serve(session, begin, {}, "auto")
    assert done == ["stop", "up"]
