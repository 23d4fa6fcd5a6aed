"""What this process may use of its machine: in a container, such as a learner's in a class, less than there is."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")  # in a container its own; the files of version 2, else those of version 1
CLASS_TOKEN = Path("/run/secrets/jupyterhub_token")  # is there in a learner's container, which has no Docker engine


def processors() -> int:
    """How many processors this process may use at a time, of a container's quota the whole ones, and at least one."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _numbers("cpu.max") or _numbers("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    if len(quota) != 2 or min(quota) <= 0:
        return here
    return min(here, max(1, quota[0] // quota[1]))


def available_memory() -> int:
    """Bytes of memory that can still be taken: the machine's, and no more than a container's limit leaves.

    What the limit's owner has read of files counts as free, as it does for the machine.
    """
    here = psutil.virtual_memory().available
    for limit, used, stat, name in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat", "total_inactive_file"),
    ):
        if len(numbers := _numbers(limit, used)) == 2 and numbers[0] > 0:
            read = (line.split() for line in _text(stat).splitlines())
            kept = sum(int(words[1]) for words in read if words[:1] == [name] and len(words) == 2)
            return max(0, min(here, numbers[0] - numbers[1] + kept))
    return here


def _numbers(*files: str) -> list[int]:
    """All numbers of some files; none where one has a word, such as "max"."""
    words = [word for file in files for word in _text(file).split()]
    return [int(word) for word in words] if all(word.lstrip("-").isdecimal() for word in words) else []


def _text(file: str) -> str:
    try:
        return (CGROUP / file).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
