"""Waiting for a state with a deadline. Imports nothing that an environment with few packages lacks."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

DEADLINE_S = 120.0


def eventually(check: Callable[[], Any], timeout: float = DEADLINE_S) -> Any:
    """The first true value of ``check``, which is asked once more after the deadline."""
    deadline = time.monotonic() + timeout
    over = False
    while not over:
        over = time.monotonic() >= deadline
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"{check} did not become true within {timeout:g} s")
