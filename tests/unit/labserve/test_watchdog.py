"""An execution that does not come back is named: whose model it is, since when, and at which line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from checkout import ROOT
from waiting import eventually

from labctl.learn import server
from labctl.learn.exercise import find_exercise, find_exercises
from labctl.manifest.catalog import load_catalog
from labctl.stack import faults
from labctl.stack.faults import FRESH_S
from labctl.workspace import Workspace
from labserve.observe.clock import CONTROL
from labserve.observe.watchdog import Watchdog

BOUND_S, LOOK_S = 0.2, 0.02


class Model:
    """Executes on a thread of its own, as a stub does."""

    def __init__(self, note: Path) -> None:
        self.release = threading.Event()
        self.calls = 0
        self._note = note
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.watchdog = Watchdog(self._note, "m", BOUND_S, LOOK_S)
        while not self.release.is_set():
            self.execute(["a request"])

    def execute(self, requests: list[str]) -> None:
        self.calls += 1
        time.sleep(LOOK_S / 4)

    def end(self) -> None:
        self.release.set()
        self._thread.join()
        self.watchdog.close()


class Endless(Model):
    def execute(self, requests: list[str]) -> None:
        self.calls += 1
        while not self.release.is_set():
            time.sleep(LOOK_S / 4)


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "stuck-m-0.json"


@pytest.fixture
def endless(note: Path) -> Iterator[Model]:
    model = Endless(note)
    yield model
    model.end()


def test_an_endless_execution_is_named_with_its_line_and_the_note_goes_when_it_ends(note: Path, endless: Model) -> None:
    eventually(note.exists)
    told = json.loads(note.read_text())
    lines = Path(__file__).read_text().splitlines()
    assert "sleep" in lines[told["line"] - 1] or "while" in lines[told["line"] - 1]
    assert told["since"] <= time.time() - BOUND_S
    (sentence,) = faults.stuck_sentences(note.parent)
    assert sentence.startswith("m has not come back from one execution since ")
    assert f"{__file__}:{told['line']}" in sentence and "a loop without an end" in sentence
    assert faults.stuck_check(note.parent, "another")() == []


def test_the_exercise_server_has_a_bound_of_its_own(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked there is short, and a check wants to know within its patience."""
    workspace = Workspace(ROOT, ROOT / ".cache")
    exercise = find_exercise(find_exercises(workspace, load_catalog(workspace)), "02a")
    for key, value in server.lab_with(exercise, workspace).stacks[server.STACK].server.env.items():
        monkeypatch.setenv(key, value)
    watchdog = Watchdog(note, "m")
    watchdog.close()
    assert watchdog._bound == server.STUCK_S < exercise.manifest.patience / 2


def test_an_execution_that_is_held_by_the_clock_is_not_endless(note: Path, endless: Model) -> None:
    eventually(note.exists)
    (note.parent / CONTROL).write_text("{}")
    eventually(lambda: not note.exists())


def test_many_short_executions_are_never_taken_for_an_endless_one(note: Path) -> None:
    model = Model(note)
    deadline = time.monotonic() + 5 * BOUND_S
    while time.monotonic() < deadline:
        assert not note.exists()
        time.sleep(LOOK_S)
    model.end()
    assert model.calls > 10


def test_a_note_of_a_process_that_is_gone_is_not_believed(note: Path, endless: Model) -> None:
    eventually(note.exists)
    endless.watchdog.close()
    old = time.time() - FRESH_S - 1

    def believed() -> bool:  # a last look may have been on its way
        os.utime(note, (old, old))
        return bool(faults.stuck_sentences(note.parent))

    eventually(lambda: not believed())


class Looping(Model):
    """Computes in a thread of its own, in which a scheduler beside the model is asked."""

    def _serve(self) -> None:
        self.watchdog = Watchdog(self._note, "m", BOUND_S, LOOK_S)
        scheduling = threading.Thread(target=self.schedule, daemon=True)
        scheduling.start()
        scheduling.join()

    def schedule(self) -> None:
        self.watchdog.watch(self.step)
        while not self.release.is_set():
            self.step()

    def step(self) -> None:
        self.calls += 1
        while self.calls == 20 and not self.release.is_set():
            self.reserve()

    def reserve(self) -> None:
        time.sleep(LOOK_S / 4)  # no end


def test_a_loop_without_an_end_in_a_schedulers_own_thread_is_named_with_its_line(note: Path) -> None:
    model = Looping(note)
    eventually(note.exists)
    told = json.loads(note.read_text())
    line = Path(__file__).read_text().splitlines()[told["line"] - 1]
    assert any(words in line for words in ("no end", "self.calls == 20", "self.reserve()", "def reserve"))
    assert told["file"] == __file__
    model.end()


def test_a_scheduler_that_sleeps_between_two_steps_is_not_stuck(note: Path) -> None:
    class Idle(Looping):
        def schedule(self) -> None:
            self.watchdog.watch(self.step)
            self.step()
            self.release.wait()

    model = Idle(note)
    time.sleep(3 * BOUND_S)  # the point of the test: longer than any step may take
    assert not note.exists()
    model.end()


# A collection begins in each look and lets the watched thread go on, which calls functions with frames of many sizes.
LOOKS = """
import gc, sys, threading, time
from labserve.observe.watchdog import execution, find_in_thread

calls = []
for size in range(8):
    local = "".join(f", v{number}=0" for number in range(size))
    exec(f"def call(depth{local}): return calls[(7 * depth + {size}) % 8](depth - 1) if depth else 0")
    calls.append(call)

def work():
    while True:
        for depth in range(40):
            calls[depth % 8](depth)

watched = threading.Thread(target=work, daemon=True)
watched.start()
sys.setswitchinterval(1e-6)
gc.callbacks.append(lambda phase, info: time.sleep(0))
gc.set_threshold(1)
for _ in range(30):
    assert find_in_thread(watched.ident, execution) is None
print(gc.isenabled())
"""


def test_a_collection_in_the_midst_of_a_look_does_not_let_the_watched_thread_go_on() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ended = subprocess.run(
        [sys.executable, "-c", LOOKS], check=False, env=env, capture_output=True, text=True, timeout=100
    )
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr
