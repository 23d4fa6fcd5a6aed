"""A process that lets others go first where all processors are busy."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

NICE = 5  # a third of another's weight (sched(7)): it waits some milliseconds at most, and is never left out
TRIES, PAUSE_S = 10, 0.05  # the kernel takes one such value each 100 ms from all who are not root


def let_others_first(pid: int) -> None:
    """Make a process that leads its session nice, with all that share its group; nothing where it has ended.

    For Envoy: a relay that is woken for each packet takes the processor from whoever is about to send the next one.
    Where it waits a moment, it finds several at once, and relays each for less (docs/operate/scale.md has the figures).
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, os.getpriority(os.PRIO_PGRP, pid) + NICE)
        # A kernel that shares processors between sessions first ("autogroup", sched(7)) looks at their value alone.
        for _ in range(TRIES):
            try:
                Path(f"/proc/{pid}/autogroup").write_text(str(NICE), encoding="ascii")
            except BlockingIOError:
                time.sleep(PAUSE_S)
            else:
                break
