"""The clock: models and labctl meet over files of a run folder; what is granted is used once, by nobody else."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl.clock import Clock as Remote
from labctl.clock import PauseLimit, pause_limit
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack import faults
from labctl.stack.session import Session
from labserve.observe.clock import StepClock

WAIT_S = 60.0


class Model:
    """One instance that computes steps in a thread, as long as it has some left; ``done`` counts them.

    ``looks`` counts how often it asked and the clock held it.
    """

    def __init__(
        self, folder: Path, left: int, name: str = "m", instance: str = "0", takes: float = 0.0, held: bool = False
    ) -> None:
        self.left, self.done, self.takes = left, 0, takes
        self.looks = 0
        self.going_on = threading.Event()  # unless it is set, a step does not end
        if not held:
            self.going_on.set()
        self.clock = StepClock(str(folder), name, instance)
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while self.left and not self.stop.is_set():
            if self.clock.ready(lambda: {"ids": ["7"], "waiting": ["8"], "queue": 1}):
                time.sleep(self.takes)
                self.going_on.wait(WAIT_S)
                self.left -= 1
                self.done += 1
                self.clock.done(left=self.left)
            else:
                self.looks += 1


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Model]]:
    made: list[Model] = []

    def start(left: int, **more: object) -> Model:
        made.append(Model(tmp_path, left, **more))  # type: ignore[arg-type]
        made[-1].thread.start()
        return made[-1]

    yield start
    for model in made:
        model.stop.set()
        model.going_on.set()
        model.thread.join(WAIT_S)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.005)


@contextmanager
def still(model: Model) -> Iterator[None]:
    """Nothing is computed meanwhile, nor in ten looks of the model afterwards."""
    before = model.done
    yield
    looks = model.looks
    until(lambda: model.looks >= looks + 10)
    assert model.done == before


def held(remote: Remote, model: str = "m") -> bool:
    return any(state["state"] == "held" for state in remote.states(model))


def test_a_free_clock_lets_every_step_through_and_writes_none(tmp_path: Path, start: Callable[..., Model]) -> None:
    model = start(50)
    model.thread.join(WAIT_S)
    assert model.done == 50
    assert [path.name for path in tmp_path.iterdir()] == ["clock-m.claims"], "it says that the model has a clock"


def test_a_paused_model_says_who_is_in_the_step_that_waits(tmp_path: Path, start: Callable[..., Model]) -> None:
    remote = Remote(tmp_path, ("m",))
    remote.pause()
    model = start(3)
    until(lambda: held(remote))
    (told,) = remote.states("m")
    assert (told["ids"], told["waiting"], told["queue"]) == (["7"], ["8"], 1)
    assert remote.paused == ["m"]
    with still(model):
        pass
    remote.run()
    model.thread.join(WAIT_S)
    assert model.done == 3
    assert list(tmp_path.glob("clock*.json")) == [], "nothing is left of the pause"


def test_a_step_is_one_step_of_each_model_that_has_something_to_do(tmp_path: Path, start: Callable[..., Model]) -> None:
    remote = Remote(tmp_path, ("m", "other", "idle"))
    remote.pause()
    one, other = start(9), start(9, name="other")
    until(lambda: held(remote) and held(remote, "other"))
    assert remote.step() == {"m": 1, "other": 1}
    assert (one.done, other.done) == (1, 1)
    assert remote.step(3, "other") == {"other": 3}
    with still(one), still(other):
        assert (one.done, other.done) == (1, 4)


def test_what_nobody_used_is_not_there_later(tmp_path: Path, start: Callable[..., Model]) -> None:
    remote = Remote(tmp_path, ("m",))
    remote.pause()
    assert remote.step(5) == {}
    first = start(2)
    until(lambda: held(remote))
    assert remote.step(5) == {"m": 2}, "it returns when nothing waits any more"
    first.thread.join(WAIT_S)
    second = start(4)
    until(lambda: held(remote))
    with still(second):
        pass


def test_instances_of_a_model_share_its_steps(tmp_path: Path, start: Callable[..., Model]) -> None:
    remote = Remote(tmp_path, ("m",))
    remote.pause()
    pair = [start(9, instance=instance) for instance in "01"]
    until(lambda: len([s for s in remote.states("m") if s["state"] == "held"]) == 2)
    assert remote.step(5) == {"m": 5}
    assert sum(model.done for model in pair) == 5


def test_step_returns_only_when_the_step_is_over(tmp_path: Path, start: Callable[..., Model]) -> None:
    remote = Remote(tmp_path, ("m",))
    remote.pause()
    model = start(2, takes=0.3)
    until(lambda: held(remote))
    began = time.monotonic()
    assert remote.step() == {"m": 1}
    assert time.monotonic() - began >= 0.3
    assert model.done == 1


@pytest.mark.parametrize("model", [None, "m"])
def test_run_wins_while_a_step_is_pending(tmp_path: Path, start: Callable[..., Model], model: str | None) -> None:
    StepClock(str(tmp_path), "other", "0")
    remote = Remote(tmp_path, ("m", "other"))
    remote.pause()
    computing = start(3, held=True)
    until(lambda: held(remote))
    steps: list[dict[str, int]] = []
    stepping = threading.Thread(target=lambda: steps.append(remote.step(2)))
    stepping.start()
    until(lambda: any(state["state"] == "running" for state in remote.states("m")))
    remote.run(model)
    computing.going_on.set()
    stepping.join(WAIT_S)
    assert not stepping.is_alive()
    computing.thread.join(WAIT_S)
    assert computing.done == 3, "the pending step stopped a clock that runs"
    assert remote.paused == ([] if not model else ["other"])
    assert steps in ([{"m": 1}], [{"m": 2}])  # it may have taken the second one before Run came


def test_a_pause_of_somebody_else_ends_a_step_that_waits(tmp_path: Path) -> None:
    StepClock(str(tmp_path), "m", "0")
    remote = Remote(tmp_path, ("m",))
    remote.pause()
    (tmp_path / "clock-m-0.json").write_text(
        json.dumps({"model": "m", "instance": "0", "state": "held"})
    )  # and never takes a step
    stepping = threading.Thread(target=remote.step)
    stepping.start()
    until(lambda: "grant" in remote.mode("m"))
    remote.pause()
    stepping.join(WAIT_S)
    assert not stepping.is_alive()
    assert remote.paused == ["m"]


def test_slow_motion_makes_a_step_and_the_time_after_it_so_many_times_as_long(
    tmp_path: Path, start: Callable[..., Model]
) -> None:
    remote = Remote(tmp_path, ("m",))
    remote.slow(4)
    began = time.monotonic()
    model = start(4, takes=0.05)
    model.thread.join(WAIT_S)
    assert model.done == 4
    assert time.monotonic() - began >= 3 * 4 * 0.05  # after the last there is nothing to wait for


def test_a_step_that_was_held_up_does_not_hold_up_slow_motion_for_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    clock = StepClock(str(tmp_path), "m", "0")
    Remote(tmp_path, ("m",)).slow(50)
    assert clock.ready(dict)
    now[0] += 3.0  # the machine did something else meanwhile
    clock.done()
    now[0] += 9.0
    assert not clock.ready(dict)
    now[0] += 1.0
    assert clock.ready(dict)


def test_the_schedulers_time_stands_still_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    clock, remote = StepClock(str(tmp_path), "m", "0"), Remote(tmp_path, ("m",))
    assert clock.ready(dict)
    before = clock.now()
    remote.pause()
    assert not clock.ready(dict)
    now[0] += 600.0
    assert not clock.ready(dict)
    assert clock.now() == before
    remote.run()
    assert clock.ready(dict)
    now[0] += 2.0
    assert clock.now() == before + 2.0


@pytest.mark.parametrize("text", ["", "[]", '{"models": 3}', '{"models": {"*": {"mode": "slow"}}}', "\xff"])
def test_a_damaged_control_file_holds_nobody(tmp_path: Path, text: str) -> None:
    (tmp_path / "clock.json").write_text(text, encoding="latin-1")
    assert StepClock(str(tmp_path), "m", "0").ready(dict)
    assert Remote(tmp_path, ("m",)).paused == []


def test_a_model_or_a_factor_that_is_not_there_is_refused(tmp_path: Path) -> None:
    remote = Remote(tmp_path, ("m",))
    with lab_error("model-unknown", "'n'"):
        remote.pause("n")
    with lab_error("slow-factor-invalid", "0.5"):
        remote.slow(0.5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "seconds", "why"),
    [
        (
            "sequence_batching {\n  max_sequence_idle_microseconds: 5000000\n}",
            5.0,
            "Triton forgets a sequence that is idle for 5 s",
        ),
        (
            "default_queue_policy { default_timeout_microseconds: 600000000 }",
            600.0,
            "Triton refuses a request that waits in its queue for 600 s",
        ),
        ("# max_sequence_idle_microseconds: 5\ndefault_queue_policy { default_timeout_microseconds: 0 }", None, ""),
    ],
)
def test_a_pause_may_last_until_the_first_of_tritons_own_limits_strikes(
    tmp_path: Path, config: str, seconds: float | None, why: str
) -> None:
    for name, text in (("one", config), ("other", "max_sequence_idle_microseconds: 900000000" if seconds else "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    limit = pause_limit(tmp_path)
    assert (limit and limit.limit_s, limit.why if limit else "") == (seconds, why)


def test_a_pause_ends_by_itself_before_the_limit_and_steps_do_not_make_it_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    clock, remote = StepClock(str(tmp_path), "m", "0"), Remote(tmp_path, ("m",), PauseLimit(40.0, "forgets"))
    remote.pause()
    now[0] += 20.0
    remote.pause()
    assert not clock.ready(dict)
    assert (remote.paused, remote.until) == (["m"], 130.0)
    now[0] += 10.5
    assert clock.ready(dict)
    assert (remote.paused, remote.until, remote.mode("m")) == ([], None, {"mode": "run"})
    remote.pause()
    assert not clock.ready(dict), "a pause after it is one of its own"


def test_one_model_can_stand_still_while_the_others_run(tmp_path: Path, start: Callable[..., Model]) -> None:
    remote = Remote(tmp_path, ("m", "other"))
    remote.pause("other")
    free, stopped = start(5), start(5, name="other")
    free.thread.join(WAIT_S)
    assert (free.done, stopped.done, remote.paused) == (5, 0, ["other"])
    remote.run("other")
    stopped.thread.join(WAIT_S)
    assert stopped.done == 5


def test_who_is_about_to_wait_is_told_that_the_clock_stands_still(session: Session) -> None:
    record = Record("iterative", "02", "local", "cpu", {}, ["m", "n"], Endpoints("h:1", "h:2", "h:3"))
    run_dir = session.workspace.folder("iterative").run_dir()
    second = session.workspace.folder("iterative").run_dir(2)
    for folder, model in ((run_dir, "n"), (second, "m"), (second, "n")):
        folder.mkdir(parents=True, exist_ok=True)
        StepClock(str(folder), model, "0")
    assert faults.standing_still(session, record) is None
    Remote(run_dir, ("m", "n")).pause("n")
    assert "The clock of n stands still" in str(faults.standing_still(session, record))
    replicas = [Replica(number, record.endpoints) for number in (1, 2)]
    Remote(run_dir, ("m", "n")).run()
    Remote(second, ("m", "n")).pause()
    record = dataclasses.replace(record, balance="l7", servers=replicas)
    assert "The clock of m, n stands still" in str(faults.standing_still(session, record))


def test_a_model_without_a_clock_never_stands_still_and_is_not_stopped(tmp_path: Path) -> None:
    remote = Remote(tmp_path, ("plain", "other"))
    with lab_error("clock-none"):
        remote.act("pause")
    StepClock(str(tmp_path), "other", "0")
    with lab_error("clock-none"):
        remote.act("slow", 2, "plain")
    remote.act("pause")
    assert remote.paused == ["other"]
    remote.act("run", model="plain")
    with lab_error("model-unknown"):
        remote.act("pause", model="nothing")


@pytest.mark.parametrize(
    "wrong", [{"instance": None}, {"ids": [1]}, {"ids": "a"}, {"waiting": [{}]}, {"steps": "2"}, {"model": "other"}]
)
def test_a_clock_file_of_another_form_is_nobodys_state(tmp_path: Path, wrong: dict[str, Any]) -> None:
    state = {"model": "m", "instance": "0", "state": "held", "ids": ["a"], "waiting": ["b"]}
    clock, file = Remote(tmp_path, ("m",)), tmp_path / "clock-m-0.json"
    file.write_text(json.dumps(state))
    assert clock.states("m") == [state]
    file.write_text(json.dumps({**state, **wrong}))
    assert clock.states("m") == []
