"""What one model may take of memory while it is checked: one that takes more is stopped, and that is said."""

from __future__ import annotations

import contextlib
import threading

import psutil

from labctl.runtimes.base import Runtime
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.record import Record
from labkit.errors import LabError

LOOK_S = 0.25


class Limits:
    """Watches a server's processes for the time of a block.

    On this machine the one that takes too much is killed, and the server lives. Of a container's processes only the
    engine may kill one, and by its number there, which it does not tell: there the server goes too.
    """

    def __init__(self, runtime: Runtime, record: Record, memory_mib: int) -> None:
        self._server = record.server.get("pid") if runtime.name == "local" else None
        self._containers = runtime if isinstance(runtime, ComposeRuntime) else None
        self._record = record
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

    def describe_excess(self) -> str:
        """What happened, in words; "" while nothing did."""
        if not self._over.is_set():
            return ""
        limit = f"{self._limit:,} MiB of memory"
        return f"a model took more than {limit} and was stopped: does something grow without an end?"

    def _watch(self) -> None:
        if self._containers:
            self._watch_containers(self._containers)
        while self._server and not self._end.wait(LOOK_S):
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(self._server).children(recursive=True):
                    if process.memory_info().rss > self._limit * 2**20:
                        process.kill()
                        self._over.set()

    def _watch_containers(self, runtime: ComposeRuntime) -> None:
        while not self._end.wait(LOOK_S):
            with contextlib.suppress(LabError):
                if runtime.largest(self._record.stack) > self._limit * 2**20:
                    self._over.set()
                    runtime.kill(self._record.stack)
                    return
