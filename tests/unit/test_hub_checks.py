"""The hub's queue is fair."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from labctl.hub.checks import Check, Checks
from labkit.errors import LabError
from labkit.waiting import attempts


class Judge:
    """Notes who was judged, in order; each check waits for one ``release()``."""

    def __init__(self) -> None:
        self.order: list[int] = []
        self.most = self._now = 0
        self._turns, self._lock = threading.Semaphore(0), threading.Lock()

    def __call__(self, check: Check, waited_s: float) -> None:
        with self._lock:
            self.order.append(check.learner)
            self._now += 1
            self.most = max(self.most, self._now)
        assert self._turns.acquire(timeout=60.0)
        with self._lock:
            self._now -= 1

    def release(self, count: int) -> None:
        self._turns.release(count)


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.release(100)


def wait_for(judge: Judge, count: int) -> None:
    for _ in attempts(60.0, 0.01):
        if len(judge.order) >= count:
            return
    raise AssertionError(judge.order)


def test_checks_begin_in_the_order_in_which_they_were_asked_for(judge: Judge) -> None:
    checks = Checks(judge, 1)
    for learner in (3, 1, 2):
        checks.ask(Check(learner, "02a", {}))
    wait_for(judge, 1)
    assert [checks.place(learner) for learner in (3, 1, 2, 4)] == [0, 1, 2, None]
    judge.release(3)
    wait_for(judge, 3)
    assert judge.order == [3, 1, 2]


@pytest.mark.parametrize("running", [True, False])
def test_a_learner_has_one_check_at_a_time(judge: Judge, running: bool) -> None:
    checks = Checks(judge, 1)
    if not running:
        checks.ask(Check(9, "02a", {}))
    wait_for(judge, 0 if running else 1)
    checks.ask(Check(1, "02a", {}))
    with pytest.raises(LabError, match="not over"):
        checks.ask(Check(1, "02b", {}))


def test_a_learner_who_asks_again_at_once_comes_after_those_who_wait(judge: Judge) -> None:
    checks = Checks(judge, 1)
    for learner in (1, 2, 3):
        checks.ask(Check(learner, "02a", {}))
    judge.release(1)
    wait_for(judge, 2)
    checks.ask(Check(1, "02a", {}))
    judge.release(10)
    wait_for(judge, 4)
    assert judge.order == [1, 2, 3, 1]


def test_no_more_checks_run_than_there_is_room_for(judge: Judge) -> None:
    checks = Checks(judge, 2)
    for learner in range(6):
        checks.ask(Check(learner, "02a", {}))
    wait_for(judge, 2)
    judge.release(6)
    wait_for(judge, 6)
    assert judge.most == 2
