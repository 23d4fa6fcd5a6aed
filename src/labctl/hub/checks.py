"""The queue of checks: as many at once as the machine has room for, one of each learner, first come first served.

A learner has at most one check in it. So a check waits for at most one check of each other learner.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from labkit.errors import LabError


@dataclass(frozen=True)
class Check:
    """One check that was asked for. ``files``: texts by name; ``asked``: monotonic seconds."""

    learner: int
    exercise: str
    files: Mapping[str, str]
    asked: float = field(default_factory=time.monotonic)


class Checks:
    """``judge`` is called with each check in a thread of its own, and with the seconds that it waited."""

    def __init__(self, judge: Callable[[Check, float], None], at_once: int) -> None:
        self._judge, self._changed, self._closed = judge, threading.Condition(), False
        self._waiting: deque[Check] = deque()
        self._running: dict[int, Check] = {}
        self._threads = [threading.Thread(target=self._work, daemon=True, name="check") for _ in range(at_once)]
        for thread in self._threads:
            thread.start()

    def ask(self, check: Check) -> int:
        """Put a check at the end; its place. Raises LabError: one of the same learner is not over yet."""
        with self._changed:
            if self._place(check.learner) is not None:
                raise LabError("your last check is not over yet", "one check of each learner at a time")
            self._waiting.append(check)
            self._changed.notify()
            return len(self._waiting)

    def place(self, learner: int) -> int | None:
        """How many checks begin before the learner's, and itself; 0: it is running; None: there is none."""
        with self._changed:
            return self._place(learner)

    def exercise(self, learner: int) -> str:
        """The exercise of the learner's check; "" where there is none."""
        with self._changed:
            here = [*self._running.values(), *self._waiting]
        return next((check.exercise for check in here if check.learner == learner), "")

    def _place(self, learner: int) -> int | None:
        if learner in self._running:
            return 0
        return next((n for n, check in enumerate(self._waiting, 1) if check.learner == learner), None)

    def close(self) -> None:
        """Begin no check any more; those that run are not waited for."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                check = self._waiting.popleft()
                self._running[check.learner] = check
            try:
                self._judge(check, time.monotonic() - check.asked)
            finally:
                with self._changed:
                    del self._running[check.learner]
