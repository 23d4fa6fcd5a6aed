"""Says when an execution does not come back: a loop without an end holds its model, and Triton waits without a word."""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from labserve.clock import CONTROL

BOUND_S = 20.0  # no execution of the labs takes that long
BOUND = "LABS_STUCK_S"  # another bound, for a server that is asked nothing long
LOOK_S = 1.0


class Mark:
    """Stands on the frame of one execution from the first time that it is seen, where a tracer would stand."""

    def __init__(self) -> None:
        self.since = time.time()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any: ...


class Watchdog:
    """Looks once a second where the thread that made it is. `steps` is for its owner to count.

    While an execution takes longer than the bound, `path` says which (`labctl status` reads it): JSON with `model`,
    `since` (seconds since the epoch), `steps` (those before it), and `file` and `line` where it is now.
    It is written anew at every look, so that an old one tells of a process that is gone.
    """

    def __init__(self, path: Path, model: str, bound: float | None = None, look: float = LOOK_S) -> None:
        self.steps = 0
        self._path, self._model = path, model
        self._clock = path.with_name(CONTROL)
        self._bound = float(os.environ.get(BOUND, BOUND_S)) if bound is None else bound
        self._look = look
        self._watched = threading.get_ident()
        self._end = threading.Event()
        self._mark: Mark | None = None
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def close(self) -> None:
        self._end.set()

    def _watch(self) -> None:
        while not self._end.wait(self._look):
            self._once()

    def _once(self) -> None:
        running = execution(sys._current_frames().get(self._watched))
        if running is None or self._clock.exists():  # a clock that stands still is no loop
            self._forget()
            return
        execute, line = running
        # The mark is on the frame itself: to keep the frame, to know it again, would keep its requests alive.
        if self._mark is None or execute.f_trace is not self._mark:
            self._forget()
            self._mark = execute.f_trace = Mark()
        elif time.time() - self._mark.since >= self._bound:
            report = {"model": self._model, "since": self._mark.since, "steps": self.steps,
                    "file": execute.f_code.co_filename, "line": line}  # fmt: skip
            try:
                part = self._path.with_suffix(".part")
                part.write_text(json.dumps(report), encoding="utf-8")
                part.replace(self._path)
            except OSError:  # nobody can be told, and that is no reason to fail
                pass

    def _forget(self) -> None:
        if self._mark is not None:
            self._mark = None
            self._path.unlink(missing_ok=True)


def execution(frame: FrameType | None) -> tuple[FrameType, int] | None:
    """The frame of `execute` below which `frame` runs, and the innermost line that is in the same file."""
    inner: dict[str, int] = {}
    while frame is not None:
        inner.setdefault(frame.f_code.co_filename, frame.f_lineno)
        if frame.f_code.co_name == "execute" and "requests" in frame.f_code.co_varnames:
            return frame, inner[frame.f_code.co_filename]
        frame = frame.f_back
    return None
