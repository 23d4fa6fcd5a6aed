"""A server container that is being watched: is it still on its way, and if not, how did it end?"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from labctl.runtimes import docker_engine
from labctl.runtimes.base import FRONT
from labctl.runtimes.processes import as_they_come
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

ENGINE_PATIENCE_S = 3.0
KEPT_LINES = 20_000
SERVICES = ("guard", "triton")  # the server has the last word


class ComposeServer:
    """Watched containers of servers and of what stands before them, each with its name in errors ("": the only one)."""

    def __init__(self, containers: Sequence[tuple[str, Any]], record: Record) -> None:
        self.record, self._containers = record, containers
        self._silent_since: float | None = None

    def serves(self) -> None:
        """Its shared memory is the container's own."""

    def exited(self) -> str | None:
        """Raises LabError when the engine itself stays silent."""
        import docker.errors

        try:
            for who, container in self._containers:
                container.reload()
                if how := docker_engine.how_ended(container.attrs):
                    return f"{who}: {how}" if who else how
        except docker.errors.NotFound:
            return "its container was removed"
        except docker_engine.engine_errors() as error:
            self._silent_since = self._silent_since or time.monotonic()
            if time.monotonic() - self._silent_since > ENGINE_PATIENCE_S:
                raise LabError("the Docker engine stopped answering", "", "start it, then labctl down") from error
        else:
            self._silent_since = None
        return None


def log_lines(workspace: Workspace, stack: str, follow: bool, number: int = 0) -> Iterator[str]:
    """The log, of that replica or FRONT, line by line; after its containers are gone, what :func:`keep_log` kept."""
    path = workspace.folder(stack).log_file(max(number, 0))
    if containers := _containers(workspace, stack, number):
        with docker_engine.speaking("reading the log"):
            if follow:
                yield from as_they_come([_lines(c.logs(stream=True, follow=True)) for c in containers])
            else:
                for container in containers:
                    yield from container.logs().decode(errors="replace").splitlines()
    elif path.is_file():
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
    else:
        raise LabError(f"there is no log of '{stack}'", "it has no container", f"labctl up {stack}")


def _containers(workspace: Workspace, stack: str, number: int) -> list[Any]:
    """What stands before the servers, then the servers: they have the last word."""
    containers = []
    for service in SERVICES[:1] if number == FRONT else SERVICES:
        there = docker_engine.containers(str(workspace.root), stack, service)
        containers += sorted(there, key=docker_engine.replica)
    if number > 0:
        return [c for c in containers if c.labels.get(docker_engine.REPLICA) == str(number)]
    return containers


def keep_log(workspace: Workspace, stack: str) -> None:
    """The last words of a stack outlive its containers."""
    with contextlib.suppress(LabError, *docker_engine.engine_errors()):
        if containers := _containers(workspace, stack, 0):
            words = b"".join(c.logs(tail=KEPT_LINES) for c in containers)
            atomic_write(workspace.folder(stack).log_file(), words, mode=0o600)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines out of the pieces of a stream."""
    pending = b""
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in complete)
    if pending:
        yield pending.decode(errors="replace")
