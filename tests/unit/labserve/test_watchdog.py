"""An execution that does not come back is named: whose model it is, since when, and at which line."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import ROOT
from waiting import DEADLINE_S, eventually

from labctl.catalog import load_catalog
from labctl.learn import server
from labctl.learn.exercise import find_exercise, find_exercises
from labctl.options import Options
from labctl.plan import make_plan
from labctl.stack import faults
from labctl.stack.faults import FRESH_S
from labctl.workspace import Workspace
from labserve.observe import watched_log
from labserve.observe.clock import CONTROL
from labserve.observe.watched_log import Watchdog

BOUND_S = 20.0


class Model:
    """Executes on a thread of its own, as a stub does; each execution lasts until the test lets it come back."""

    def __init__(self, note: Path, bound: float = BOUND_S, look: float = 1.0) -> None:
        self._note, self._bound, self._look = note, bound, look
        self._inside, self._may_end = threading.Semaphore(0), threading.Semaphore(0)
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.watchdog = Watchdog(self._note, "m", self._bound, self._look)
        while not self._over:
            self.execute(["a request"])

    def execute(self, requests: list[str]) -> None:
        self.stay()

    def stay(self) -> None:
        self._inside.release()
        self._may_end.acquire()

    def wait_for_execution(self) -> None:
        """Return when it is in an execution that this method has not waited for before."""
        assert self._inside.acquire(timeout=DEADLINE_S)

    def let_go(self) -> None:
        """Let the execution come back."""
        self._may_end.release()

    def end(self) -> None:
        """Let its last execution come back; its thread is over when this returns."""
        self._over = True
        self.let_go()
        self._thread.join()

    def close(self) -> None:
        self.end()
        self.watchdog.close()


class Looping(Model):
    """Computes in a thread of its own, in which a scheduler beside the model is asked."""

    def _serve(self) -> None:
        self.watchdog = Watchdog(self._note, "m", self._bound, self._look)
        scheduling = threading.Thread(target=self.schedule, daemon=True)
        scheduling.start()
        scheduling.join()

    def schedule(self) -> None:
        self.watchdog.watch(self.step)
        while not self._over:
            self.step()

    def step(self) -> None:
        self.stay()


@pytest.fixture
def note(tmp_path: Path) -> Path:
    return tmp_path / "stuck-m-0.json"


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that the model's process has waited for a processor, which the test moves."""
    waited = [0.0]
    monkeypatch.setattr(watched_log, "RunQueue", lambda: SimpleNamespace(waited=lambda: waited[0]))
    return waited


@pytest.fixture
def computed() -> list[float]:
    """The seconds that the model's thread has computed, which the test moves."""
    return [0.0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch, by_hand: None, waited: list[float], computed: list[float]) -> list[float]:
    """The watchdog's clock, which the test moves."""
    now = [time.time() - 2 * BOUND_S]
    times = SimpleNamespace(
        time=lambda: now[0], clock_gettime=lambda _: computed[0], pthread_getcpuclockid=time.pthread_getcpuclockid
    )
    monkeypatch.setattr(watched_log, "time", times)
    return now


def look_twice(model: Model, clock: list[float], seconds: float = BOUND_S) -> None:
    """Two looks at the execution that it is in, with so many seconds between them."""
    model.wait_for_execution()
    model.watchdog.looking.tick()
    clock[0] += seconds
    model.watchdog.looking.tick()


@pytest.fixture
def endless(note: Path, clock: list[float]) -> Iterator[Model]:
    """A model in an execution that has lasted too long."""
    model = Model(note)
    look_twice(model, clock)
    yield model
    model.close()


def test_an_endless_execution_is_named_with_its_line_and_the_note_goes_when_it_ends(
    note: Path, endless: Model, clock: list[float]
) -> None:
    told = json.loads(note.read_text())
    lines = Path(__file__).read_text().splitlines()
    assert lines[told["line"] - 1].strip() in ("self._inside.release()", "self._may_end.acquire()")
    assert told["since"] == clock[0] - BOUND_S
    (sentence,) = faults.stuck_sentences(note.parent)
    assert sentence.startswith("m has not come back from one execution since ")
    assert f"{__file__}:{told['line']}" in sentence and "a loop without an end" in sentence
    assert faults.stuck_check(note.parent, "another")() == []
    endless.end()
    endless.watchdog.looking.tick()
    assert not note.exists()


def test_an_endless_execution_is_found_without_being_asked_for(note: Path) -> None:
    model = Model(note, bound=0.0, look=0.01)
    eventually(note.exists)
    model.close()


def test_the_exercise_server_has_a_bound_of_its_own(note: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked there is short, and a check wants to know within its patience."""
    workspace = Workspace(ROOT, ROOT / ".cache")
    exercise = find_exercise(find_exercises(workspace, load_catalog(workspace)), "02a")
    for key, value in make_plan(
        workspace, server.lab_with(exercise, workspace), server.STACK, Options()
    ).served.env.items():
        monkeypatch.setenv(key, value)
    watchdog = Watchdog(note, "m")
    watchdog.close()
    assert watchdog._bound == server.STUCK_S < exercise.manifest.patience / 2


def test_an_execution_that_is_held_by_the_clock_is_not_endless(note: Path, endless: Model) -> None:
    assert note.exists()
    (note.parent / CONTROL).write_text("{}")
    endless.watchdog.looking.tick()
    assert not note.exists()


def test_an_execution_within_the_bound_is_not_named(note: Path, clock: list[float]) -> None:
    model = Model(note)
    look_twice(model, clock, BOUND_S - 1.0)
    assert not note.exists()
    model.close()


def test_a_step_that_does_not_return_is_reported_to_its_model(note: Path, clock: list[float]) -> None:
    model = Model(note)
    hung: list[str] = []
    model.wait_for_execution()
    model.watchdog._hung = hung.append
    for seconds in (0.0, watched_log.HUNG_S - 1.0, 1.0):
        assert not hung
        clock[0] += seconds
        model.watchdog.looking.tick()
    (where,) = hung
    assert where.startswith(f"{__file__}, line ")
    model.close()


def test_what_an_execution_waits_for_a_processor_does_not_count(
    note: Path, clock: list[float], waited: list[float]
) -> None:
    model = Model(note)
    waited[0] = 3 * BOUND_S
    look_twice(model, clock, 4 * BOUND_S - 1.0)
    assert not note.exists()
    clock[0] += 1.0
    model.watchdog.looking.tick()
    assert note.exists()
    model.close()


def test_a_loop_on_a_busy_machine_is_named_by_its_processor_time(
    note: Path, clock: list[float], waited: list[float], computed: list[float]
) -> None:
    model = Model(note)
    look_twice(model, clock, 0.0)
    for seconds, named in ((BOUND_S - 1.0, False), (BOUND_S, True)):
        clock[0] += 100 * BOUND_S
        waited[0] += 100 * BOUND_S  # all the time some program waits
        computed[0] = seconds
        model.watchdog.looking.tick()
        assert note.exists() == named
    model.close()


def test_the_processor_time_of_the_watched_thread_is_told_from_that_of_others(note: Path) -> None:
    """The test computes here, and the model in its thread does not."""
    model = Model(note)
    model.wait_for_execution()
    processor_clock = model.watchdog._watched[2]
    model.watchdog.looking.tick()
    before, own = time.clock_gettime(processor_clock), time.thread_time()
    while time.thread_time() < own + 0.05:
        pass
    assert time.clock_gettime(processor_clock) - before < 0.02
    model.close()


def test_many_short_executions_are_never_taken_for_an_endless_one(note: Path, clock: list[float]) -> None:
    model = Model(note)
    for _ in range(10):
        model.wait_for_execution()
        model.watchdog.looking.tick()
        assert not note.exists()
        clock[0] += BOUND_S
        model.let_go()
    model.close()


def test_a_note_of_a_process_that_is_gone_is_not_believed(note: Path, endless: Model) -> None:
    assert faults.stuck_sentences(note.parent)
    old = time.time() - FRESH_S - 1
    os.utime(note, (old, old))
    assert not faults.stuck_sentences(note.parent)


def test_a_loop_without_an_end_in_a_schedulers_own_thread_is_named_with_its_line(
    note: Path, clock: list[float]
) -> None:
    model = Looping(note)
    look_twice(model, clock)
    told = json.loads(note.read_text())
    line = Path(__file__).read_text().splitlines()[told["line"] - 1]
    assert line.strip() in ("self._inside.release()", "self._may_end.acquire()")
    assert told["file"] == __file__
    model.close()


def test_a_scheduler_that_sleeps_between_two_steps_is_not_stuck(note: Path, clock: list[float]) -> None:
    class Idle(Looping):
        def schedule(self) -> None:
            self.watchdog.watch(self.step)
            self.stay()

    model = Idle(note)
    look_twice(model, clock)
    assert not note.exists()
    model.close()


# A collection begins in each look and lets the watched thread go on, which calls functions with frames of many sizes.
LOOKS = """
import gc, sys, threading, time
import fake_backend
from labserve.observe.watched_log import execution, find_in_thread

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
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests' / 'helpers'}"}
    ended = subprocess.run(
        [sys.executable, "-c", LOOKS], check=False, env=env, capture_output=True, text=True, timeout=600
    )
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


def test_a_learners_file_below_the_loop_is_named_and_not_the_loops_own(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text("def line(look):\n    return look()\n", encoding="utf-8")
    learner = runpy.run_path(str(tmp_path / "scheduler.py"))

    def step(own: str) -> Any:
        return learner["line"](lambda: watched_log.execution(sys._getframe(), step.__code__, own))

    found, shipped = step(str(tmp_path)), step("")
    assert (found.file, found.line) == (str(tmp_path / "scheduler.py"), 2)
    assert shipped.file == __file__
