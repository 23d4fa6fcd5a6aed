"""For the night before a workshop: whether this machine has room for the labs, and how long they will take on it.

The yardstick is what a lab mostly does on a CPU: it reads weights from memory, multiplies matrices, and runs Python.
The best of many short rounds counts, so that other work on the machine has little influence.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from labctl.doctor.machine import DoctorCheck
from labctl.limits import available_memory, processors
from labkit.disk import free_bytes

REFERENCE_S = 0.006  # the yardstick on the EPYC of docs/develop/measurements.md
#: Seconds that do not depend on the processor, and seconds of computing on the reference. Lab 02 took 44 s there,
#: 53 s at 2.0 times the reference, 81 s at 4.5.
LAB_02_S, QUICK_S = (33, 11), (60, 15)  # `labctl run iterative`; what no lab's --quick run exceeds
SLOW = 13.0  # times the reference: from here on the hours of a workshop are not enough
BUDGET_S = 2.0
SETUP_DISK = 6e9  # bytes: packages, the caches of a workshop's labs, results
MEMORY = 4e9


def checks(root: Path) -> list[DoctorCheck]:
    """The additional checks of ``labctl doctor --workshop``."""
    available, free, cores = available_memory(), free_bytes(root), processors()
    close = f"close other programs: the labs need {MEMORY / 1e9:.0f} GB; in a class, labctl hub up --memory 4G"
    clear = f"free some space: {SETUP_DISK / 1e9:.0f} GB are needed"
    more = "two or more: with one, client and server disturb each other"
    return [
        DoctorCheck.of(available >= MEMORY, "memory", f"{available / 1e9:.1f} GB available", close, "warn"),
        DoctorCheck.of(free >= SETUP_DISK, "room", f"{free / 1e9:.1f} GB free for {root}", clear),
        DoctorCheck.of(cores >= 2, "processors", str(cores), more, "warn"),
        speed_check(yardstick() / REFERENCE_S),
    ]


def yardstick() -> float:
    """Seconds for one round of each kind of work: the best of the rounds that fit into ``BUDGET_S``."""
    weights = np.ones((8192, 1024), dtype=np.float32)
    row, square = np.ones(8192, dtype=np.float32), np.ones((512, 512), dtype=np.float32)
    kinds: list[Callable[[], object]] = [
        lambda: row @ weights,
        lambda: square @ square,
        lambda: sum(len(str(number)) for number in range(50_000)),
    ]
    return sum(_best(work, BUDGET_S / len(kinds)) for work in kinds)


def _best(work: Callable[[], object], budget: float) -> float:
    best, end = math.inf, time.perf_counter() + budget
    while (began := time.perf_counter()) < end:
        work()
        best = min(best, time.perf_counter() - began)
    return best


def speed_check(times: float) -> DoctorCheck:
    """How many times as long as the reference machine this one takes for the same work, and what that means."""
    lab, quick = (_time(waits + times * computes) for waits, computes in (LAB_02_S, QUICK_S))
    measured = f"{times:.1f} (lab 02 takes about {lab}, --quick runs at most {quick})"
    remedy = "close other programs, plug the laptop in, or use --quick"
    return DoctorCheck.of(times <= SLOW, "time, reference 1.0", measured, remedy, "warn")


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
