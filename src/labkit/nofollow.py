"""Files in a stack's folder, opened without following a link and without waiting for a FIFO.

A model may write anything into its server's run folder, and the labctl that looks there may be root. Every path below
that folder is therefore opened here: by its name, inside its opened parent folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import time
from pathlib import Path
from typing import Any, BinaryIO

from labkit.errors import LabError
from labsched.files import json_object as json_object
from labsched.files import open_regular, parent_of
from labsched.files import open_to_read as open_to_read

MOST_JSON = 16 * 2**20  # bytes; none of our small files comes near


def folders(run_dir: Path) -> list[Path]:
    """The run folder of a stack and its replicas' folders in it. A link is not one of them."""
    replicas = sorted(path for path in run_dir.glob("replica-*") if path.is_dir() and not path.is_symlink())
    return [run_dir, *replicas]


def require_own(path: Path, kind: str) -> None:
    """Refuse a path at which labctl needs its own "file" or "folder" (or either: "") if it is something else.

    Raises:
        LabError: it is a link, of another kind, or another user's; nothing is touched.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    except NotADirectoryError:
        return  # another check names the parent
    found = {stat.S_IFDIR: "folder", stat.S_IFREG: "file"}.get(stat.S_IFMT(status.st_mode))
    if stat.S_ISLNK(status.st_mode):
        why = "it is a link, and labctl follows none there"
    elif not found or kind not in ("", found):
        why = f"it is not a {kind or 'file or folder'}"
    elif kind == "file" and status.st_uid != os.getuid():  # a server in a container may own its run folder
        why = f"it belongs to another user ({status.st_uid})"
    else:
        return
    raise LabError(f"{path} cannot be used", why, f"see what it is, then remove it: rm -r {path}", code="path-not-own")


def read_text(path: Path) -> str:
    """The text of a small file. Raises OSError as :func:`open_to_read` does, ValueError for a large one or no UTF-8."""
    with open_to_read(path) as stream:
        data = stream.read(MOST_JSON + 1)
    if len(data) > MOST_JSON:
        raise ValueError(f"{path} is too large")
    return data.decode()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a small file. Raises OSError as :func:`open_to_read` does, ValueError for anything else."""
    return json_object(read_text(path))


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all; its folder is made if it is not there. Raises OSError."""
    temporary = f".{path.name}.{secrets.token_hex(8)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with parent_of(path) as folder:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=folder)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                os.fchmod(stream.fileno(), 0o644)
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=folder)
            raise


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file to append to it; it is made if it is not there. Raises OSError as :func:`open_to_read`
    does.
    """
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, "ab")


def touch(path: Path) -> None:
    """Make an empty file, or set its times to now. Raises OSError."""
    with open_to_append(path) as stream:
        os.utime(stream.fileno())


def lock(handle: int, seconds: float) -> None:
    """Lock an opened file or folder that a server may have locked for good. Raises OSError after that time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def unlink(path: Path) -> None:
    """Remove a file, or a link itself. Raises OSError, but not for a file that is gone."""
    with contextlib.suppress(FileNotFoundError), parent_of(path) as folder:
        os.unlink(path.name, dir_fd=folder)


def change_owner(path: Path, owner: int) -> None:
    """Give a file, a folder or a link itself to a user and its group. Raises OSError."""
    os.chown(path, owner, owner, follow_symlinks=False)


def give_all(folder: Path, owner: int) -> None:
    """Give a folder and everything in it; what vanishes meanwhile is left out."""
    with contextlib.suppress(FileNotFoundError):
        change_owner(folder, owner)
    for _, names, files, handle in os.fwalk(folder):  # it enters no link
        for name in (*names, *files):
            with contextlib.suppress(FileNotFoundError):
                os.chown(name, owner, owner, dir_fd=handle, follow_symlinks=False)
