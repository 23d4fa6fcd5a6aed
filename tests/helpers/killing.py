"""A SIGKILL for a part of a stack that is up, on either runtime."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from labctl.runtimes import docker_engine
from labctl.runtimes.leftovers import REPLICA, SERVER
from labctl.runtimes.leftovers import ROOT as OF_CHECKOUT


def kill_server(root: Path, stack: str, where: str, number: int = 0) -> None:
    """Kill that replica of a stack, or its only server."""
    if where == "compose":
        for container in docker_engine.containers(str(root), stack, "triton"):
            if number in (0, docker_engine.replica(container)):
                container.kill()
        return
    for process in _named(SERVER):
        with contextlib.suppress(psutil.Error):
            env = process.environ()
            if env.get(OF_CHECKOUT) == str(root) and (not number or env.get(REPLICA) == str(number)):
                process.send_signal(signal.SIGKILL)


def kill_front(root: Path, stack: str, where: str) -> None:
    """Kill Envoy."""
    if where == "compose":
        docker_engine.containers(str(root), stack, "envoy")[0].kill()
        return
    (envoy,) = [process for process in _named("envoy") if str(root) in " ".join(process.cmdline())]
    os.kill(envoy.pid, signal.SIGKILL)


def _named(name: str) -> Iterator[psutil.Process]:
    return (process for process in psutil.process_iter(["name"]) if process.info["name"] == name)
