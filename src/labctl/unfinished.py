"""Folders in the making: each is locked by its maker, so that the next maker of the same folder removes what a killed
one left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from labkit.disk import disk_errors

NEW = ".new-"


@contextlib.contextmanager
def temporary_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder beside ``target``; whatever has not been renamed by the end of the block is removed."""
    for left in target.parent.glob(f".{glob.escape(target.name)}{NEW}*"):
        _remove_unless_locked(left)
    while True:
        fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}{NEW}"))
        with contextlib.suppress(FileNotFoundError):  # another maker removed it before it was locked
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


def _remove_unless_locked(left: Path) -> None:
    """Remove a folder whose maker was killed: one that lives has it locked."""
    with contextlib.suppress(OSError):
        handle = os.open(left, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left)
        finally:
            os.close(handle)


@contextlib.contextmanager
def replace_dir(target: Path) -> Iterator[Path]:
    """Yield an empty sibling folder that takes the place of ``target`` on success and vanishes on failure.

    The old folder stays whole until the new one is complete.
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
    """Put ``fresh`` where ``target`` is, in two renames. Of two processes that do it at a time the later wins."""
    prefix = f".{target.name}.old-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent, ignore_cleanup_errors=True) as folder:
        for number in itertools.count():
            former = Path(folder, str(number))
            with contextlib.suppress(FileNotFoundError):
                target.rename(former)
            try:
                fresh.rename(target)
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    with contextlib.suppress(OSError):
                        former.rename(target)
                    raise
