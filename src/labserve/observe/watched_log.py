"""The step log of a model in Triton, with a watchdog on its executions.

A loop without an end holds its model, and Triton waits without a word: the watchdog says so.
"""

import gc
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

from labsched.log.steplog import StepLog
from labsched.run_queue import RunQueue
from labserve.observe.clock import CONTROL, own_folder
from labserve.observe.periodic import PeriodicCall

BOUND_S = 20.0  # no execution of the labs takes that long
BOUND = "LABS_STUCK_S"  # another bound, for a server that is asked nothing long
LOOK_S = 1.0
HUNG_S = 300.0  # as long as vLLM's own server waits for a step (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


class RunningFrame(NamedTuple):
    """The frame that must come back, and where its call is now."""

    frame: FrameType
    file: str
    line: int


Find = Callable[[FrameType | None], RunningFrame | None]


class _Mark:
    """Stands on the frame of one execution from the first time that it is seen, where a tracer would stand."""

    def __init__(self, processor_clock: int) -> None:
        self.since = time.time()
        self._queue, self._clock, self._before = RunQueue(), processor_clock, time.clock_gettime(processor_clock)

    def taken(self) -> float:
        """Seconds since then of its thread's processor time (a loop), or in which nobody waited for a processor."""
        computed = 0.0
        with suppress(OSError):  # the thread has just ended
            computed = time.clock_gettime(self._clock) - self._before
        return max(computed, time.time() - self.since - self._queue.waited())

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any: ...


class Watchdog:
    """Looks once a second at the thread that made it, or that called `watch`. `steps` counts its executions.

    While an execution takes longer than the bound, which what is waited for a processor is not part of, `path` says
    which (`labctl status` reads it): JSON with `model`, `since` (seconds since the epoch), `steps` (those before it),
    and `file` and `line` where it is now.
    It is rewritten at every look, so an old file means that the process is gone. Between `looking` and `close` the
    looking thread owns the mark and the file; `watch` replaces the thread that is watched in one write.
    """

    def __init__(
        self,
        path: Path,
        model: str,
        bound: float | None = None,
        look: float = LOOK_S,
        find: Find | None = None,
        what: str = "one execution",
        steps: Callable[[], int] = lambda: 0,
    ) -> None:
        self._steps = steps
        self._path, self._model = path, model
        self._clock = path.with_name(CONTROL)
        self._bound = float(os.environ.get(BOUND, BOUND_S)) if bound is None else bound
        self._what = what
        self._watch_thread(find or execution)
        self._mark: _Mark | None = None
        self._hung: Callable[[str], None] | None = None
        self.looking = PeriodicCall(look, self._look)

    def watch(
        self, function: Callable[..., Any], hung: Callable[[str], None] | None = None, folder: Path | None = None
    ) -> None:
        """From now on each call of `function` in this thread is an execution.

        `hung` is told where one is that has not returned for `HUNG_S`. A file in `folder` is named before the
        function's own.
        """
        code, self._hung = inspect.unwrap(function).__code__, hung
        own = str(folder) if folder else ""
        self._watch_thread(lambda frame: execution(frame, code, own))

    def _watch_thread(self, find: Find) -> None:
        ident = threading.get_ident()
        self._watched = ident, find, time.pthread_getcpuclockid(ident)

    def close(self) -> None:
        """Look no more: when this returns, the file is as it was last written."""
        self.looking.close()

    def _look(self) -> None:
        ident, find, processor_clock = self._watched
        running = find_in_thread(ident, find)
        if running is None or self._clock.exists():  # a model held by the clock is not stuck
            self._forget()
            return
        # The mark is on the frame itself: to keep the frame, to know it again, would keep its requests alive.
        if self._mark is None or running.frame.f_trace is not self._mark:
            self._forget()
            self._mark = running.frame.f_trace = _Mark(processor_clock)
        elif self._mark.taken() >= self._bound:
            report = {
                "model": self._model,
                "what": self._what,
                "since": self._mark.since,
                "steps": self._steps(),
                "file": running.file,
                "line": running.line,
            }
            with suppress(OSError):  # the report cannot be written; the model must not fail for it
                part = self._path.with_suffix(".part")
                part.write_text(json.dumps(report), encoding="utf-8")
                part.replace(self._path)
            if self._hung and self._mark.taken() >= HUNG_S:
                self._hung(f"{running.file}, line {running.line}")

    def _forget(self) -> None:
        if self._mark is not None:
            self._mark = None
            self._path.unlink(missing_ok=True)


class WatchedLog(StepLog):
    """A step log in the stack's run folder `run_dir`; where that is "", there is neither a log nor a watchdog."""

    def __init__(self, run_dir: str, model: str, instance: str) -> None:
        folder = own_folder(run_dir)
        super().__init__(folder, model, instance)
        self._watchdog: Watchdog | None = None
        if run_dir:
            path = Path(folder) / f"stuck-{model}-{instance}.json"
            self._watchdog = Watchdog(path, model, steps=lambda: self.count)

    def watch(self, function: Callable[..., Any], hung: Callable[[str], None], folder: Path | None = None) -> None:
        """Called in the thread in which a model computes: see `Watchdog.watch`."""
        if self._watchdog is not None:
            self._watchdog.watch(function, hung, folder)

    def close(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        super().close()


_looking = threading.Lock()


@contextmanager
def _without_collection() -> Iterator[None]:
    """No garbage is collected meanwhile: for a look at another thread's frames, from the first to the last.

    CPython 3.11 may collect while it makes the object of a frame, and a collection may let that thread go on. The frame
    is then gone and its memory used for something else, which crashed the process; or the collection waits for a lock
    that it holds itself (https://github.com/python/cpython/issues/106883).
    """
    with _looking:
        collects = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collects:
                gc.enable()


def find_in_thread(ident: int, find: Find) -> RunningFrame | None:
    """What ``find`` finds below the innermost frame of a thread; None for a thread that has ended."""
    with _without_collection():
        return find(sys._current_frames().get(ident))


def execution(frame: FrameType | None, code: CodeType | None = None, own: str = "") -> RunningFrame | None:
    """The frame of an execution below which `frame` runs, and the innermost file and line in the model's own folder.

    It is a call of `code`; of a model's `execute` where there is none. The model's folder is `own`, or else that of
    the file of this call.
    """
    inner: dict[str, tuple[str, int]] = {}
    while frame is not None:
        file = frame.f_code.co_filename
        folder = os.path.dirname(file)  # noqa: PTH120
        inner.setdefault(folder, (file, frame.f_lineno))
        if code:
            executes = frame.f_code is code
        else:
            executes = frame.f_code.co_name == "execute" and "requests" in frame.f_code.co_varnames
        if executes:
            return RunningFrame(frame, *(inner.get(own) or inner[folder]))
        frame = frame.f_back
    return None


def loading(frame: FrameType | None, file: str) -> RunningFrame | None:
    """The outermost frame of that file, and the innermost line in it: while it is imported or initialised."""
    outermost: FrameType | None = None
    line = 0
    while frame is not None:
        if frame.f_code.co_filename == file:
            line = line or frame.f_lineno
            outermost = frame
        frame = frame.f_back
    return RunningFrame(outermost, file, line) if outermost else None
