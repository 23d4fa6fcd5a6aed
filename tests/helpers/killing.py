"""A SIGKILL for a part of a stack that is up, on either runtime."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil

from labctl.runtimes import docker_engine
from labctl.runtimes.groups import ENVOY, groups
from labctl.workspace import Workspace


def kill_server(root: Path, stack: str, where: str, number: int | None = None) -> None:
    """Kill that replica of a stack, or its only server."""
    if where == "compose":
        for container in docker_engine.containers(str(root), stack, "triton"):
            if number in (None, docker_engine.replica(container)):
                container.kill()
        return
    for group in groups(Workspace(root, root).folder(stack)):
        if number in (None, group.number) and (process := group.server()):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)


def kill_front(root: Path, stack: str, where: str) -> None:
    """Kill Envoy."""
    if where == "compose":
        docker_engine.containers(str(root), stack, "envoy")[0].kill()
        return
    (envoy,) = [group for group in groups(Workspace(root, root).folder(stack)) if group.part == ENVOY]
    os.kill(envoy.leader.pid, signal.SIGKILL)
