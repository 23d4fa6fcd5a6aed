"""Measurements that are repeated if the virtual machine's host took the processors away meanwhile (steal time)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

AT_MOST, TRIES = 0.02, 6  # of the processors' time; measurements, before one that was disturbed is taken

Found = TypeVar("Found")


def undisturbed(measure: Callable[[], Found]) -> Found:
    """What it returns, asked again while the host takes more than `AT_MOST` of the processors meanwhile.

    After `TRIES` the last one is taken, and that is printed. Source: "steal" in proc_stat(5).
    """
    for number in range(1, TRIES + 1):
        stolen, every = _ticks()
        found = measure()
        stolen, every = (now - before for now, before in zip(_ticks(), (stolen, every), strict=True))
        if stolen <= AT_MOST * every:
            return found
        end = "measured again" if number < TRIES else "taken nevertheless"
        print(f"  the host took {stolen / every:.0%} of the processors: {end}", flush=True)
    return found


def _ticks() -> tuple[int, int]:
    """Processor time that the host took, and all of it, since the machine started."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    ticks = [int(word) for word in first.split()[1:9]]  # user, nice, system, idle, iowait, irq, softirq, steal
    return ticks[-1], sum(ticks)
