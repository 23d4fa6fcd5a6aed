"""Races made to show: `--chaos SEED` delays what threads do to each other, in our own packages, at random places.

A thread that changes a state in several writes and a test that looks between two of them meet once in a thousand runs.
With this plugin

- threads are switched far more often;
- code of ours waits before and after what another thread may see: a lock's release, a queue's `put`, the start of a
  thread, `Event.set`, `Condition.notify`, a call into another thread's loop, a renamed file;
- functions of ours that run beside the test, in other threads, wait at their entry and before their return;
- the whole process pauses now and then, as on a busy machine: nothing runs, and the clock goes on.

Which places are slow, and for how long, follows from the seed and the test's name alone, so a seed makes the same
delays again, as far as threads allow. A test is delayed for `MOST_S` at most and paused for as long. A failure lists
its delays.
"""

from __future__ import annotations

import _thread
import asyncio
import ctypes
import functools
import os
import queue
import random
import sys
import sysconfig
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

MOST_S = 1.5  # of delays in a test, and of pauses
LENGTHS = (0.003, 0.05, 0.25, 0.4)  # seconds of a delay
REPEATED = 3  # delays at one place in a test
AT_A_MEETING, AT_A_FUNCTION = 1 / 3, 1 / 10  # the shares of such places that are slow in a test
BETWEEN_PAUSES = (0.05, 0.4)  # seconds
SWITCH_S = 1e-5
#: What another thread may see of ours. A lock's release and a SimpleQueue's put are in C: here are `Lock` and `Queue`.
MEETINGS: tuple[tuple[Any, str], ...] = (
    (threading.Thread, "start"),
    (threading.Event, "set"),
    (threading.Condition, "notify"),
    (threading.Condition, "__exit__"),
    (queue.Queue, "put"),
    (asyncio.BaseEventLoop, "call_soon_threadsafe"),
    (os, "replace"),
    (os, "rename"),
)
_sleep, _allocate, _settrace = time.sleep, threading.Lock, sys.settrace  # whatever a test puts in their place
_tracing = _allocate()
_stdlib = sysconfig.get_path("stdlib")


class Delays:
    """Those of one test."""

    def __init__(self, seed: int, test: str) -> None:
        self.made: list[str] = []
        self.random = random.Random(f"{seed} {test}")
        self._name = f"{seed} {test}"
        self._left = self._pauses_left = MOST_S
        self._places: dict[tuple[Any, ...], Iterator[float]] = {}

    def at(self, share: float, what: str, code: types.CodeType, line: int) -> None:
        """Wait, if this place is one of the slow ones."""
        place = (what, code, line)
        if (lengths := self._places.get(place)) is None:
            name = f"{what} in {ours(code)}:{code.co_qualname}, line {line - code.co_firstlineno} of it"
            lengths = self._places[place] = iter(list(self._lengths(share, name)))
        seconds = next(lengths, 0.0)
        if 0 < seconds <= self._left:
            self._left -= seconds
            self.made.append(f"{seconds:5.3f} s  {what}, {ours(code)}:{line} ({code.co_qualname})")
            _sleep(seconds)

    def pause(self) -> float:
        """How long the process pauses now, in seconds."""
        if (seconds := self.random.choice(LENGTHS)) > self._pauses_left:
            return 0.0
        self._pauses_left -= seconds
        self.made.append(f"{seconds:5.3f} s  the whole process")
        return seconds

    def _lengths(self, share: float, place: str) -> Iterator[float]:
        """What a place waits when it is passed for the first time, the second time, ..."""
        chances = random.Random(f"{self._name} {place}")
        if chances.random() < share:
            for _ in range(REPEATED):
                yield chances.choice(LENGTHS) * (chances.random() < 0.7)


_now: Delays | None = None  # of the test that runs
_checkout = Path.cwd()


@functools.cache
def _ours(file: str) -> str:
    path = Path(file)
    inside = any(path.is_relative_to(_checkout / folder) for folder in ("src", "model_repos"))
    return str(path.relative_to(_checkout)) if inside else ""


def ours(code: types.CodeType) -> str:
    """The file of a function of our packages, from the checkout on; "" for anybody else's."""
    return _ours(code.co_filename)


def _asker() -> types.FrameType | None:
    """The frame of ours that has called what a wrapper here stands for, itself or through the standard library."""
    frame = sys._getframe(2)
    for _ in range(4):
        if frame is None or ours(frame.f_code):
            return frame
        if not frame.f_code.co_filename.startswith(_stdlib) or "site-packages" in frame.f_code.co_filename:
            return None
        frame = frame.f_back  # type: ignore[assignment]
    return None


def _meet(what: str, real: Callable[..., Any], frame: types.FrameType | None, *args: Any, **kwargs: Any) -> Any:
    """Call what another thread may see, with a delay before and one after it."""
    if frame is None or (delays := _now) is None:
        return real(*args, **kwargs)
    code, line = frame.f_code, frame.f_lineno
    delays.at(AT_A_MEETING, f"before {what}", code, line)
    try:
        return real(*args, **kwargs)
    finally:
        delays.at(AT_A_MEETING, f"after {what}", code, line)


def _around(owner: Any, name: str) -> Callable[..., Any]:
    real = getattr(owner, name)
    what = f"{owner.__name__}.{name}"

    @functools.wraps(real)
    def met(*args: Any, **kwargs: Any) -> Any:
        return _meet(what, real, _asker(), *args, **kwargs)

    return met


class Lock:
    """A lock of ours."""

    def __init__(self) -> None:
        self._lock = _allocate()
        self.acquire, self.locked = self._lock.acquire, self._lock.locked

    def release(self) -> None:
        _meet("a lock's release", self._lock.release, _asker())

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        _meet("a lock's release", self._lock.release, _asker())


def _lock() -> Any:
    return Lock() if ours(sys._getframe(1).f_code) else _allocate()


class Queue(queue.SimpleQueue[Any]):
    """Of ours or of anybody; only what code of ours puts is delayed."""

    def put(self, *args: Any, **kwargs: Any) -> None:
        _meet("SimpleQueue.put", super().put, _asker(), *args, **kwargs)


def _trace(function: Any) -> None:
    """Trace this thread, one thread at a time: up to Python 3.11, one that meets another in `sys.settrace` dies."""
    with _tracing:
        _settrace(function)


def _entry(frame: types.FrameType, event: str, arg: object) -> Any:
    """Trace a thread's calls: of code of ours the entry and the return, of other code nothing."""
    if not _ours(frame.f_code.co_filename):
        return None
    frame.f_trace_lines = False
    if _now is not None:
        _now.at(AT_A_FUNCTION, "at the entry", frame.f_code, frame.f_code.co_firstlineno)
    return _return


def _return(frame: types.FrameType, event: str, arg: object) -> Any:
    if event == "return" and _now is not None:
        _now.at(AT_A_FUNCTION, "before the return", frame.f_code, frame.f_code.co_firstlineno)
    return _return


def _pause_now_and_then() -> None:
    usleep = ctypes.PyDLL(None).usleep  # PyDLL keeps the interpreter's lock: no thread of Python runs meanwhile
    while True:
        delays = _now
        _sleep(delays.random.uniform(*BETWEEN_PAUSES) if delays else 0.05)
        if delays and delays is _now and (seconds := delays.pause()):
            usleep(int(seconds * 1e6))


class Chaos:
    """The plugin, where a seed is given."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def pytest_report_header(self) -> str:
        return f"chaos: --chaos {self.seed}"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        global _now  # noqa: PLW0603
        _now = Delays(
            self.seed, f"{item.path.name}::{item.location[2]}"
        )  # a node id ends in its group under pytest-xdist
        try:
            return (yield)
        finally:
            _now = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        if report.failed and _now is not None:
            report.sections.append((f"delays of --chaos {self.seed}", "\n".join(_now.made)))
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
            terminalreporter.section(f"chaos: these delays again with --chaos {self.seed}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--chaos", type=int, metavar="SEED", help="delay our threads at random places (tests/helpers/chaos.py)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if (seed := config.getoption("--chaos")) is None:
        return
    global _checkout  # noqa: PLW0603
    _checkout = config.rootpath
    patches = pytest.MonkeyPatch()
    config.add_cleanup(patches.undo)
    for owner, name in MEETINGS:
        patches.setattr(owner, name, _around(owner, name))
    patches.setattr(threading, "Lock", _lock)
    patches.setattr(queue, "SimpleQueue", Queue)
    patches.setattr(sys, "settrace", _trace)
    threading.settrace(_entry)
    sys.setswitchinterval(SWITCH_S)
    _thread.start_new_thread(_pause_now_and_then, ())  # none that a test would find among its threads
    config.pluginmanager.register(Chaos(seed), "chaos-of-a-seed")
