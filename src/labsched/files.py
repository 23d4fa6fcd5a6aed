"""Files that a server writes, opened without following a link and without waiting for a FIFO.

A model may write anything into its server's run folder, and the reader may be root. So a file is opened by its name,
inside its opened parent folder.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file to read it. Raises OSError for a link, a FIFO, a folder or a device."""
    return open_regular(path, os.O_RDONLY, "rb")


def open_regular(path: Path, flags: int, mode: str) -> BinaryIO:
    """Open a regular file with these flags of `os.open`. Raises OSError as :func:`open_to_read` does."""
    with parent_of(path) as folder:
        handle = os.open(path.name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return cast(BinaryIO, os.fdopen(handle, mode))


@contextlib.contextmanager
def parent_of(path: Path) -> Iterator[int]:
    """The opened folder of a path, which must not be a link: a server may have replaced it since it was listed."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield handle
    finally:
        os.close(handle)


def json_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object. Raises ValueError for any other text."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("the text is nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("the text is not a JSON object")
    return data
