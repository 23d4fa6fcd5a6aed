"""Limit the memory that a model may take while it is checked: a model that takes more is stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import psutil

from labctl.runtimes import docker_engine
from labctl.runtimes.groups import model_processes
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit.errors import LabError
from labkit.waiting import call_repeatedly

LOOK_S = 0.25
MOST_MIB = 3072  # of one model's process


@contextlib.contextmanager
def memory_limit(workspace: Workspace, record: Record) -> Iterator[Callable[[], str | None]]:
    """Watch a server's processes for the time of a block; yields what says in words what happened, if it did.

    On this machine the process that takes too much is killed, and the server lives. In a container its number is not
    known here, so the whole server is killed.
    """
    limit, stopped = MOST_MIB * 2**20, False

    def look() -> None:
        nonlocal stopped
        if record.runtime == "local":
            for process in model_processes(workspace.folder(record.stack)):
                with contextlib.suppress(psutil.Error):
                    if process.memory_info().rss > limit:
                        stopped = True  # before its end shows
                        process.kill()
            return
        with contextlib.suppress(LabError):
            servers = docker_engine.containers(str(workspace.root), record.stack, "triton")
            if not stopped and any(docker_engine.largest_process_bytes(server) > limit for server in servers):
                stopped = True
                with docker_engine.engine_failures("ending a container"):
                    for server in servers:
                        server.kill()

    def describe_excess() -> str | None:
        taken = f"a model took more than {MOST_MIB:,} MiB of memory and was stopped"
        return f"{taken}: does something grow without an end?" if stopped else None

    with call_repeatedly(look, LOOK_S, "limits"):
        yield describe_excess
