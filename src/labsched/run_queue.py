"""How long processes waited for a processor, by the kernel: what a time limit on a busy machine must not count."""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

PROC = Path("/proc")


def waited_by_any() -> float:
    """Return the seconds since the machine's start in which at least one program waited for a processor.

    Linux counts them (kernel documentation, accounting/psi.rst); 0.0 elsewhere.
    """
    try:
        some = (PROC / "pressure/cpu").read_text(encoding="ascii").splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError, IndexError):
        return 0.0


class RunQueue:
    """Counts from now on how long processes wait for a processor.

    A process waits while one of its threads does: of its threads, the one that waited longest counts. What the
    processes waited is added up, because one of them may work for another. Linux counts it (kernel documentation,
    scheduler/sched-stats.rst, ``schedstat``); a kernel that does not knows at most when any program waited, and that
    counts then.
    """

    def __init__(self, pids: Callable[[], Iterable[int]] = lambda: (os.getpid(),)) -> None:
        self._pids = pids
        self._before, self._any = self._waits(), waited_by_any()

    def waited(self) -> float:
        """Return the seconds since this was made."""
        if not self._before:
            return waited_by_any() - self._any
        longest: dict[int, float] = defaultdict(float)
        for (pid, thread), seconds in self._waits().items():
            longest[pid] = max(longest[pid], seconds - self._before.get((pid, thread), 0.0))
        return sum(longest.values())

    def _waits(self) -> dict[tuple[int, str], float]:
        """What each thread has waited since it began."""
        waits = {}
        for pid in self._pids():
            with contextlib.suppress(OSError):  # it ends while its threads are listed
                for path in (PROC / str(pid) / "task").glob("*/schedstat"):
                    with contextlib.suppress(OSError, ValueError, IndexError):  # it has just ended, or it is not ours
                        waits[pid, path.parent.name] = int(path.read_text(encoding="ascii").split()[1]) / 1e9
        return waits
