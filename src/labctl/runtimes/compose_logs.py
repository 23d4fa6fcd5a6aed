"""What the containers of a stack say: the server's log, and its guard's where it has one."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence

from labctl.errors import LabError
from labctl.runtimes import docker_engine
from labctl.workspace import Workspace, atomic_write

KEPT_LINES = 20_000
SERVICES = ("guard", "triton")  # the server has the last word


def lines(workspace: Workspace, stack: str, follow: bool) -> Iterator[str]:
    """Line by line, without line ends; after the containers are gone, what :func:`keep` kept.

    Raises:
        LabError: there is neither, or the engine fails.
    """
    containers = [c for service in SERVICES for c in docker_engine.containers(str(workspace.root), stack, service)]
    if containers:
        with docker_engine.speaking("reading the log"):
            if follow:
                yield from _as_they_come([_lines(c.logs(stream=True, follow=True)) for c in containers])
            else:
                for container in containers:
                    yield from container.logs().decode(errors="replace").splitlines()
        return
    path = workspace.log_file(stack)
    if not path.is_file():
        raise LabError(f"there is no log of '{stack}'", "it has no container", f"labctl up {stack}")
    yield from path.read_text(encoding="utf-8", errors="replace").splitlines()


def keep(workspace: Workspace, stack: str) -> None:
    """The last words of a stack outlive its containers."""
    with contextlib.suppress(LabError, *docker_engine.engine_errors()):
        containers = [c for service in SERVICES for c in docker_engine.containers(str(workspace.root), stack, service)]
        if containers:
            atomic_write(workspace.log_file(stack), b"".join(c.logs(tail=KEPT_LINES) for c in containers), mode=0o600)


def _as_they_come(streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """The lines of several streams; whatever one of them raises."""
    if len(streams) == 1:
        yield from streams[0]
        return
    arrived: queue.Queue[str | Exception | None] = queue.Queue()

    def read(stream: Iterator[str]) -> None:
        try:
            for line in stream:
                arrived.put(line)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    ended = 0
    while ended < len(streams):
        line = arrived.get()
        if isinstance(line, Exception):
            raise line
        if line is None:
            ended += 1
        else:
            yield line


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines out of the pieces of a stream."""
    pending = b""
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in complete)
    if pending:
        yield pending.decode(errors="replace")
