"""Folders in the making: each is locked by its maker, so that what a killed one left is known, and swept."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

NEW, OLD = ".new-", ".old-"
HELD = f"{NEW}held-"  # made under a lock
STALE_S = 3600.0  # a folder whose name promises no lock (an earlier version's) may be in the making until then


@contextlib.contextmanager
def making(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target``; whatever has not been renamed by the end of the block is removed."""
    while True:
        fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{HELD}"))
        handle = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
        _lock(handle, wait=True)
        if fresh.exists():  # else it was swept before it was locked
            break
        os.close(handle)
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        os.close(handle)


def aside(target: Path) -> Path:
    """A new name beside ``target``, for what it was before."""
    return Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{OLD}"))


def sweep(parents: Iterable[Path]) -> list[str]:
    """Remove what killed makers left in these folders, and put back what they had moved aside; the paths."""
    swept = []
    for parent in parents:
        swept += [str(left) for left in sorted(parent.glob(f".*{NEW}*")) if _swept(left)]
        for left in sorted(parent.glob(f".*{OLD}*")):
            target = parent / left.name[1:].rpartition(OLD)[0]
            with contextlib.suppress(OSError):
                if target.exists() or not any(left.iterdir()):
                    shutil.rmtree(left)
                else:
                    left.rename(target)
                swept.append(str(left))
    return swept


def sweep_beside(target: Path, first: Callable[[Path], None]) -> list[str]:
    """Remove what killed makers of ``target`` left beside it, wherever that is; the paths.

    Args:
        first: called with each such folder before it goes.
    """
    left = sorted(target.parent.glob(f".{glob.escape(target.name)}{HELD}*"))
    return [str(folder) for folder in left if _swept(folder, first)]


def _swept(left: Path, first: Callable[[Path], None] = lambda folder: None) -> bool:
    """Whether the folder was a killed maker's, and has gone."""
    with contextlib.suppress(OSError):
        handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            promised = HELD in left.name or time.time() - os.fstat(handle).st_mtime > STALE_S
            if promised and _lock(handle, wait=False):
                first(left)
                shutil.rmtree(left)
                return True
        finally:
            os.close(handle)
    return False


def _lock(handle: int, wait: bool) -> bool:
    """Whether the lock was had; a file system without locks has none to wait for."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True
