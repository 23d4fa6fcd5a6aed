"""Deferred calls, so that the engine's next step does not wait for them."""

import queue
import threading
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import triton_python_backend_utils as pb_utils

MOST_BEHIND = 64  # calls that wait at most: a further one waits
END_S = 10.0  # for what is left at the end


class Later:
    """Makes calls in a thread of its own, in their order. It ends with `close`, or with this object.

    While the engine computes, its thread has given up Python's lock, and this one goes on.
    """

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., None], Any, Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_run, args=(self._calls,), name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._calls.put, None)

    def call(self, function: Callable[..., None], *args: Any, **named: Any) -> None:
        """Call `function(*args, **named)` soon. An exception is written into the server's log."""
        if self._calls.qsize() >= MOST_BEHIND:
            self.settle()
        self._calls.put((function, args, named))

    def settle(self) -> None:
        """Return when all calls are made, or after END_S seconds."""
        settled = threading.Event()
        self._calls.put((settled.set, (), {}))
        settled.wait(END_S)

    def close(self) -> None:
        """Make the calls that are left, and no more."""
        self._calls.put(None)
        self._thread.join(END_S)


def _run(calls: Any) -> None:
    while (call := calls.get()) is not None:
        function, args, named = call
        try:
            function(*args, **named)
        except Exception as error:
            pb_utils.Logger.log_error("".join(traceback.format_exception(error)))
        del call, function, args, named  # they may hold what ends this thread
