"""A periodic call in a thread of its own, as long as its owner exists."""

import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils


class PeriodicCall:
    """Calls a method of an object every `seconds`, in a thread of its own.

    It ends with `close`, or with the object. A failed call is written into the server's log, once for each message, and
    the next call comes all the same. Who makes a call holds the lock, and owns the messages that were logged.
    """

    def __init__(self, seconds: float, method: Callable[[], None]) -> None:
        self._seconds = seconds
        self._method: weakref.WeakMethod[Any] = weakref.WeakMethod(method)
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._logged: set[str] = set()
        weakref.finalize(method.__self__, self._end.set)  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._run, name=method.__qualname__, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self._seconds):
            self.tick()

    def tick(self) -> None:
        """Make a call now, in this thread; one is made at a time."""
        with self._lock:
            if (method := self._method()) is None:
                return
            try:
                method()
            except Exception as error:
                if str(error) not in self._logged:
                    self._logged.add(str(error))
                    pb_utils.Logger.log_error(f"{method.__qualname__}: {''.join(traceback.format_exception(error))}")

    def close(self) -> None:
        """No call is in progress any more when this returns."""
        self._end.set()
        self._thread.join()
