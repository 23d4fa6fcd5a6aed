"""Where a stack's pages are, so that the live page and `labctl chat` lead to each other.

The live page's address holds a secret: it is in a file that only its user can read.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from labctl.options import LOOPBACK
from labctl.workspace import Workspace
from labkit import disk
from labkit.disk import atomic_write
from labkit.errors import LabError

CHAT, WATCH, OPENAI = "chat", "watch", "openai"
PORTS = {CHAT: 7860, WATCH: 7861, OPENAI: 9000}  # where a page listens if the port is free


@contextlib.contextmanager
def publish_address(workspace: Workspace, stack: str, page: str, address: str) -> Iterator[None]:
    """Publish a page's address for the time of a block, so that the stack's other page finds it."""
    path = workspace.folder(stack).address_file(page)
    atomic_write(path, address, mode=0o600)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if path.read_text(encoding="ascii") == address:  # not that of one opened later
                path.unlink()


def page_address(workspace: Workspace, stack: str, page: str) -> str | None:
    """Return the address of a page that answers."""
    try:
        address = disk.read_text(workspace.folder(stack).address_file(page))
        where = urlsplit(address)
        with socket.create_connection((where.hostname or "", where.port or 0), timeout=0.2):
            return address if where.scheme == "http" else None
    except (OSError, ValueError):
        return None


def listening_socket(port: int | None, page: str) -> socket.socket:
    """A bound socket for a page. Without a ``port`` it has the page's usual one, or a free one if that is taken.

    Raises LabError: the port is taken.
    """
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((LOOPBACK, PORTS[page] if port is None else port))
    except OSError as error:
        bound.close()
        if port is None:
            return listening_socket(0, page)
        raise LabError(
            f"port {port} is taken", str(error), "leave --port out: the page takes a free one", code="port-taken"
        ) from error
    return bound
