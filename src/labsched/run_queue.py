"""How long processes waited for a processor, by the kernel: what a time limit on a busy machine must not count."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

PROC = Path("/proc")


class RunQueue:
    """Counts from now on how long processes wait for a processor.

    A process waits while one of its threads does: of its threads, the one that waited longest counts. What the
    processes waited is added up, because one of them may work for another. Linux counts it (kernel documentation,
    scheduler/sched-stats.rst, ``schedstat``); elsewhere nobody waits.
    """

    def __init__(self, pids: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self._pids = pids
        self._before = self._waits()

    def waited(self) -> float:
        """Return the seconds since this was made."""
        longest: dict[int, float] = defaultdict(float)
        for (pid, thread), seconds in self._waits().items():
            longest[pid] = max(longest[pid], seconds - self._before.get((pid, thread), 0.0))
        return sum(longest.values())

    def _waits(self) -> dict[tuple[int, str], float]:
        """What each thread has waited since it began."""
        waits = {}
        for pid in self._pids():
            for path in (PROC / str(pid) / "task").glob("*/schedstat"):
                with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended, or it is not ours
                    waits[pid, path.parent.name] = int(path.read_text(encoding="ascii").split()[1]) / 1e9
        return waits
