"""Waiting: for a state, look by look; and what is done again and again beside a block."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator


def attempts(seconds: float, pause: float) -> Iterator[int]:
    """Attempts from 0 on with a pause between them, until the time is over; the last one comes after its end."""
    deadline = time.monotonic() + seconds
    for attempt in itertools.count():
        over = time.monotonic() >= deadline
        yield attempt
        if over:
            return
        time.sleep(pause)


@contextlib.contextmanager
def call_repeatedly(act: Callable[[], object], every: float, name: str) -> Iterator[None]:
    """Call ``act`` every ``every`` seconds, in a thread of that name, until the block ends."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every):
            act()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
