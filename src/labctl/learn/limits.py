"""Limit the memory that a model may take while it is checked: a model that takes more is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psutil

from labctl.runtimes.base import Runtime
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.record import Record
from labkit.errors import LabError
from labkit.waiting import call_repeatedly

LOOK_S = 0.25


@contextlib.contextmanager
def memory_limit(runtime: Runtime, record: Record, memory_mib: int) -> Iterator[Callable[[], str]]:
    """Watch a server's processes for the time of a block; yields what says in words what happened, "" for nothing.

    On this machine the process that takes too much is killed, and the server lives. In a container its number is not
    known here, so the whole server is killed.
    """
    limit, stopped = memory_mib * 2**20, False

    def look() -> None:
        nonlocal stopped
        if isinstance(runtime, ComposeRuntime):
            with contextlib.suppress(LabError):
                if not stopped and runtime.largest(record.stack) > limit:
                    stopped = True
                    runtime.kill(record.stack)
        elif pid := record.server.get("pid"):
            with contextlib.suppress(psutil.Error):
                for process in psutil.Process(pid).children(recursive=True):
                    if process.memory_info().rss > limit:
                        stopped = True  # before its end shows
                        process.kill()

    def describe_excess() -> str:
        taken = f"a model took more than {memory_mib:,} MiB of memory and was stopped"
        return f"{taken}: does something grow without an end?" if stopped else ""

    with call_repeatedly(look, LOOK_S, "limits"):
        yield describe_excess
