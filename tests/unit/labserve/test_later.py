"""What the engine's thread does not wait for: calls beside it, and questions about clients that may have gone."""

from __future__ import annotations

import gc
import threading
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually

from labserve import driver
from labserve.driver import Clients
from labserve.observe.recorder import MOST_BEHIND, Writer
from labserve.request import ServedRequest


class Metrics:
    """What a writer flushes: each attempt is noted, and the first one fails."""

    def __init__(self) -> None:
        self.flushed: list[int] = []

    def flush(self) -> None:
        self.flushed.append(threading.get_ident())
        if len(self.flushed) == 1:
            raise OSError("the server does not answer")


def test_calls_are_made_in_order_in_another_thread_and_one_that_fails_ends_nothing() -> None:
    made: list[tuple[int, int]] = []

    def note(number: int) -> None:
        made.append((number, threading.get_ident()))
        if number % 7 == 0:
            raise ValueError(number)

    metrics = Metrics()
    beside = Writer(metrics.flush)
    for number in range(3 * MOST_BEHIND):
        beside.call(note, number)
    beside.settle()
    assert [number for number, _ in made] == list(range(3 * MOST_BEHIND))
    assert threading.get_ident() not in {thread for _, thread in made}
    beside.call(note, -1)
    beside.close()
    assert made[-1][0] == -1, "what was handed over before the end is done"


def test_metrics_are_flushed_soon_after_a_call_and_again_where_the_server_did_not_take_them() -> None:
    metrics = Metrics()
    beside = Writer(metrics.flush)
    beside.call(lambda: None)
    eventually(lambda: len(metrics.flushed) >= 2)
    assert threading.get_ident() not in metrics.flushed
    beside.close()


def test_the_writers_thread_ends_with_the_model_that_nobody_has_any_more() -> None:
    metrics = Metrics()
    beside = Writer(metrics.flush)
    thread = beside._thread
    del beside, metrics
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize(("question_s", "most_s"), [(0.0001, 0.6), (0.002, 6.0)])
def test_each_client_is_asked_about_in_turn_and_questions_take_a_small_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch, question_s: float, most_s: float
) -> None:
    now, asked = 100.0, dict[int, list[float]]()
    monkeypatch.setattr(driver, "time", SimpleNamespace(monotonic=lambda: now))

    def source(number: int) -> Any:
        def is_cancelled() -> bool:
            nonlocal now
            now += question_s
            asked.setdefault(number, []).append(now)
            return number == 7

        return SimpleNamespace(is_cancelled=is_cancelled)

    running = [ServedRequest(str(n), [1], 1, number=n, source=source(n)) for n in range(40)]
    scheduler: Any = SimpleNamespace(running=running, waiting=[])
    beside = Clients(scheduler, running, running.remove)
    spent, steps = 0.0, 2000
    for _ in range(steps):
        now += 0.01
        began = now
        beside.drop_gone()
        spent += now - began
    assert len(asked.pop(7)) == 1 and len(running) == 39, "one that has gone has left, and nobody asks about it again"
    assert len(asked) == 39
    assert max(b - a for times in asked.values() for a, b in pairwise(times)) < most_s
    assert spent < 1.2 * driver.MOST * steps * 0.01 + 40 * question_s
