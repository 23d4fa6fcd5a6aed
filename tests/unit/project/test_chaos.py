"""--chaos SEED: a seed makes the same delays again, of our packages' code alone, and none lasts for long."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import AbstractContextManager

import chaos
import pytest

from labkit import waiting


def lock_and_unlock(made: Callable[[], AbstractContextManager[bool]]) -> None:
    with made():
        pass


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []
    monkeypatch.setattr(chaos, "_sleep", slept.append)
    return slept


def delays(slept: list[float], seed: int, test: str) -> list[float]:
    slept.clear()
    each = chaos.Delays(seed, test)
    for line in range(40):
        for _ in range(5):
            each.at(chaos.AT_A_MEETING, "before it", waiting.attempts.__code__, line)
    return [*slept, *(each.pause() for _ in range(9))]


def test_the_seed_and_the_tests_name_make_the_delays(slept: list[float]) -> None:
    first = delays(slept, 7, "test_it")
    assert first == delays(slept, 7, "test_it")
    assert first != delays(slept, 8, "test_it")
    assert first != delays(slept, 7, "test_another")
    assert 0 < sum(first) <= 2 * chaos.MOST_S


def test_only_code_of_our_packages_waits(slept: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos, "_now", chaos.Delays(7, "test_it"))
    monkeypatch.setattr(chaos, "AT_A_MEETING", 1.0)
    for _ in range(9):
        lock_and_unlock(chaos.Lock)
        chaos.Queue().put(1)
    assert not slept
    ours = compile("for _ in range(9):\n    with made():\n        put(1)\n", waiting.__file__, "exec")
    exec(ours, {"made": chaos.Lock, "put": chaos.Queue().put})
    assert slept and isinstance(chaos.Queue(), queue.SimpleQueue)
