"""The secret by which Triton tells labctl from a stranger: its shared-memory, trace, logging and repository APIs.

It is made anew at each ``up`` and lies in the stack's folder, for the caller alone to read. Triton takes it only as an
argument; it is never in the rendered repository, a log, a label or the environment of anything.
"""

from __future__ import annotations

import os
import secrets

from labctl.workspace import Workspace
from labkit import nofollow
from labkit.disk import disk_errors

KEY = "labs-secret"
CLOSED = ("model-repository", "trace", "logging")
SHARED_MEMORY = "shared-memory"
SHOWN = "(made at each up)"


def make(workspace: Workspace, stack: str) -> str:
    """A new secret for a server that is about to start; the old one is worth nothing any more."""
    file, secret = workspace.folder(stack).secret, secrets.token_urlsafe(24)
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
            stream.write(secret)
    return secret


def read(workspace: Workspace, stack: str) -> str:
    """The running server's; "" where there is none, or it is somebody else's."""
    try:
        return nofollow.read_text(workspace.folder(stack).secret)
    except (OSError, ValueError):
        return ""


def forget(workspace: Workspace, stack: str) -> None:
    workspace.folder(stack).secret.unlink(missing_ok=True)


def closed(client_shm: bool) -> tuple[str, ...]:
    """The APIs that need the secret."""
    return CLOSED if client_shm else (*CLOSED, SHARED_MEMORY)


def arguments(secret: str, client_shm: bool = False) -> list[str]:
    """Triton's arguments that close them on both protocols."""
    group = f"{','.join(closed(client_shm))}:{KEY}={secret}"
    return [f"--http-restricted-api={group}", f"--grpc-restricted-protocol={group}"]


def http_header(secret: str) -> dict[str, str]:
    return {KEY: secret} if secret else {}
