"""Where a stack's chat page is, so that the live page can link to it.

Not the other way round: the live page's address holds a secret, and whoever is on this machine may open the chat page.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from labctl.workspace import Workspace, atomic_write


@contextlib.contextmanager
def known(workspace: Workspace, stack: str, address: str) -> Iterator[None]:
    """For the time of a block the live page finds the chat page."""
    atomic_write(_file(workspace, stack), address)
    try:
        yield
    finally:
        _file(workspace, stack).unlink(missing_ok=True)


def of(workspace: Workspace, stack: str) -> str:
    """The address of a chat page that answers; "" where there is none."""
    try:
        address = _file(workspace, stack).read_text(encoding="ascii")
        where = urlsplit(address)
        with socket.create_connection((where.hostname or "", where.port or 0), timeout=0.2):
            return address if where.scheme == "http" else ""
    except (OSError, ValueError):
        return ""


def _file(workspace: Workspace, stack: str) -> Path:
    return workspace.stack_dir(stack) / "chat.address"
