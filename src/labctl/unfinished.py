"""Folders in the making: each is locked by its maker, so that what a killed one left is known, and swept.

A folder is exchanged for another in one step where the file system can do that, else in two renames.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labkit.disk import disk_errors

HELD, OLD = ".new-held-", ".old-"  # made under a lock; moved aside
AT_FDCWD, RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target``; whatever has not been renamed by the end of the block is removed."""
    while True:
        fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{HELD}"))
        with contextlib.suppress(FileNotFoundError):  # it was swept before it was locked
            handle = os.open(fresh, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            if fresh.exists():
                break
            os.close(handle)
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        os.close(handle)


@contextlib.contextmanager
def replace_dir(target: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that takes the place of ``target`` on success and vanishes on failure.

    The old folder stays whole until the new one is complete; a reader sees either the one or the other (see ``_swap``).
    Everybody may read what is in it: a server in a container may be nobody.
    """
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder(target) as fresh:
            fresh.chmod(0o755)
            yield fresh
            for path in fresh.rglob("*"):  # some libraries make files that are their owner's alone
                mode = path.lstat().st_mode
                readable = mode | (0o755 if path.is_dir() else 0o444)
                if mode != readable and not path.is_symlink():
                    path.chmod(readable)
            _swap(fresh, target)


def _swap(fresh: Path, target: Path) -> None:
    """Put ``fresh`` where ``target`` is; what was there goes only after the new one stands.

    Both change places in one step, or on some network file systems in two, between which a reader sees neither. Of two
    processes that do it at a time the later wins, and neither fails.
    """
    while True:
        with contextlib.suppress(OSError):  # an empty folder may be renamed over, another one not
            fresh.rename(target)
            return
        if _exchange(fresh, target):
            return  # what was there has the name of ``fresh`` now, and goes with its maker's block
        old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{OLD}"))
        try:
            target.rename(old)
        except FileNotFoundError:
            old.rmdir()
            continue
        try:
            fresh.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                old.rename(target)
                raise
        finally:
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Whether two folders have changed places in one step."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)  # not in every libc
    paths = (AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other))
    return rename is not None and rename(*paths, RENAME_EXCHANGE) == 0
