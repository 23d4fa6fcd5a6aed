"""Waiting for servers that were asked to stop: as long as something could be lost, and no longer."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path

# Triton's last words before it waits for clients to close their gRPC streams, which it does for as long as they like.
UNLOADED = "Found 0 live models and 0 in-flight non-inference requests"
LINGER_S = 1.0
POLL_S = 0.1
Unloaded = Callable[[], bool]


def wait(living: Callable[[], Collection[Unloaded]], grace: float) -> bool:
    """Wait until all have ended, or have unloaded their models and linger, or ``grace`` seconds are over.

    Args:
        living: for each server that has not ended: whether it has unloaded its models.

    Returns:
        whether nothing is lost when they are killed now: False where something may still be in flight.
    """
    deadline, unloaded = time.monotonic() + grace, False
    while left := living():
        if time.monotonic() >= deadline:
            return unloaded
        if not unloaded and all(done() for done in left):
            deadline, unloaded = min(deadline, time.monotonic() + LINGER_S), True
        time.sleep(POLL_S)
    return True


def from_now_on(log: Path) -> Unloaded:
    """Whether a server whose log this is says so after this call."""
    size = log.stat().st_size if log.exists() else 0

    def said() -> bool:
        with contextlib.suppress(OSError), log.open("rb") as stream:
            stream.seek(size if log.stat().st_size >= size else 0)  # a log that is too long loses its older half
            return UNLOADED.encode() in stream.read()
        return False

    return said


def late(grace: float) -> str:
    """What a person is told of a server that has to be killed."""
    return f"the server did not stop within {grace:g} s and is killed"
