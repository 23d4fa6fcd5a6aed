"""A process of this machine, known again after its end."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Proc:
    """A process told apart from a later one with the same pid.

    ``started`` is psutil's create_time: seconds since the epoch.
    """

    pid: int
    started: float

    @classmethod
    def current(cls) -> Proc:
        return cls.of(os.getpid())

    @classmethod
    def of(cls, pid: int) -> Proc:
        return cls(pid, psutil.Process(pid).create_time())

    def alive(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < 0.05
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False
