"""One ``up`` or ``down`` of a stack at a time; the second fails at once and names the holder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from types import FrameType
from typing import NamedTuple

from labctl.runtimes.record import Proc
from labctl.workspace import Workspace
from labkit import disk
from labkit.disk import disk_errors
from labkit.errors import LabError


class Busy(LabError):
    """Another command changes the stack just now."""


@contextlib.contextmanager
def stack_lock(workspace: Workspace, stack: str, action: str) -> Iterator[None]:
    """Hold a stack against other commands; ``action`` ("up", "down") is what ``labctl status`` shows of the holder.

    The kernel frees the lock when its holder dies, so it cannot go stale. Raises Busy where another command holds it.
    """
    path = workspace.folder(stack).lock
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o700)  # logs and step logs hold what clients ask and are answered
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _busy(workspace, stack) from error
        except OSError as error:
            raise LabError(f"cannot lock {path}", error.strerror or str(error), code="lock-failed") from error
        _write(handle, json.dumps({**asdict(Proc.current()), "action": action}))
        try:
            yield
        finally:
            _write(handle, "")
    finally:
        os.close(handle)


def _write(handle: int, note: str) -> None:
    """Write the holder of a lock into its file."""
    with contextlib.suppress(OSError):  # `down` goes on where the disk is full
        os.ftruncate(handle, 0)
        os.pwrite(handle, note.encode(), 0)


def _busy(workspace: Workspace, stack: str) -> Busy:
    """The error that names the holder of a lock, which it has perhaps taken a moment before it wrote its name."""
    why = "only one command at a time can change a stack"
    if not (other := holder(workspace, stack)):
        return Busy(f"another labctl command on {stack} is in progress", why, "wait for it", code="stack-busy")
    what = f"another 'labctl {other.action}' of {stack} is in progress (pid {other.pid})"
    return Busy(what, why, f"wait for it, or stop it: kill {other.pid}", code="stack-busy")


class Holder(NamedTuple):
    """The process that changes a stack, and what it does."""

    pid: int
    action: str


def holder(workspace: Workspace, stack: str) -> Holder | None:
    """The process that changes the stack now; None if there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = disk.read_object(workspace.folder(stack).lock)
        if Proc(int(data["pid"]), float(data["started"])).alive():
            return Holder(int(data["pid"]), str(data["action"]))
    return None


@contextlib.contextmanager
def hold_signals_back() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM, which only the main thread hears, at the end of a block. It must be bounded."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        heard.append(number)

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if heard:
            signal.raise_signal(heard[-1])
