"""A process of this machine, known again after its end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

EPOCH_S = 1e9  # a greater time of start was counted from 1970, by an earlier version or on a machine without /proc


@dataclass(frozen=True)
class Proc:
    """A process told apart from a later one with the same pid.

    ``started`` is in seconds since the machine was booted: the time of day may be set while the process runs.
    """

    pid: int
    started: float

    @classmethod
    def current(cls) -> Proc:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Proc:
        return cls(pid, _started(pid))

    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            started = process.create_time() if self.started > EPOCH_S else _started(self.pid)
            return abs(started - self.started) < 0.05 and process.status() != psutil.STATUS_ZOMBIE
        except (psutil.Error, OSError, ValueError):
            return False


def _started(pid: int) -> float:
    """When a process was started. Raises OSError or psutil.NoSuchProcess where there is none."""
    if not Path("/proc/self/stat").exists():
        return psutil.Process(pid).create_time()
    after_name = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(after_name[19]) / os.sysconf("SC_CLK_TCK")
