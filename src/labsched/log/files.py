"""Files that another process writes, read with a limit on what they may be."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, cast


def open_to_read(path: Path) -> BinaryIO:
    """Open a regular file to read it. Raises OSError for a folder, a device, or a FIFO, which would be waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return cast(BinaryIO, os.fdopen(handle, "rb"))


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for any other text."""
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError("the text is nested too deeply") from error
    if not isinstance(data, dict):
        raise ValueError("the text is not a JSON object")
    return data
