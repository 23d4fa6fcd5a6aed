"""What one model may take of memory while it is checked: one that takes more is stopped, and that is said."""

from __future__ import annotations

import contextlib
import threading

import psutil

from labctl.runtimes.base import Record, Runtime

LOOK_S = 0.25
STUB = "triton_python_backend_stub"


class Limits:
    """Watches the stubs of a server on this machine for the time of a block; a container has limits of its own."""

    def __init__(self, runtime: Runtime, record: Record, memory_mib: int) -> None:
        self._server = record.server.get("pid") if runtime.name == "local" else None
        self._limit = memory_mib
        self._over = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="limits", daemon=True)

    def __enter__(self) -> Limits:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._end.set()
        self._thread.join()

    def exceeded(self) -> str:
        """What happened, in words; "" while nothing did."""
        if not self._over.is_set():
            return ""
        limit = f"{self._limit:,} MiB of memory"
        return f"a model took more than {limit} and was stopped: does something grow without an end?"

    def _watch(self) -> None:
        while self._server and not self._end.wait(LOOK_S):
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self._server).children(recursive=True):
                    if process.memory_info().rss > self._limit * 2**20:
                        process.kill()
                        self._over.set()
