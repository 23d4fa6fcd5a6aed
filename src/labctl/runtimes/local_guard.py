"""The guard on the local runtime: Envoy and its judge as two processes before a server that listens on loopback."""

from __future__ import annotations

import sys
from pathlib import Path

from labctl.errors import LabError
from labctl.guard import PROCESS_NAME, envoy
from labctl.guard.envoy import Front
from labctl.guard.parts import Address
from labctl.runtimes import processes
from labctl.runtimes.actions import Command
from labctl.runtimes.base import Record
from labctl.runtimes.marks import judge_socket
from labctl.workspace import Workspace, atomic_write

NAMES = ("envoy", PROCESS_NAME)


def config_file(workspace: Workspace, stack: str) -> Path:
    return workspace.stack_dir(stack) / "envoy.json"


def commands(workspace: Workspace, record: Record) -> list[Command]:
    """What is started: the judge, then Envoy. Raises LabError where Envoy is not installed."""
    judge = [sys.executable, "-m", "labctl.guard.judge", f"unix:{judge_socket(workspace.root, record.stack)}"]
    front = [str(envoy.binary()), *envoy.arguments(str(config_file(workspace, record.stack)))]
    return [Command(judge, cwd=Path("/")), Command(front, cwd=Path("/"))]


def write(workspace: Workspace, record: Record) -> None:
    """Write Envoy's configuration and let Envoy judge it.

    Raises:
        LabError: it finds fault with it.
    """
    assert record.behind
    path = config_file(workspace, record.stack)
    pairs = zip(vars(record.endpoints).values(), vars(record.behind).values(), strict=True)
    http, grpc, metrics = (
        Front(Address(record.bind, Address.of(front).port), [Address.of(server)]) for front, server in pairs
    )
    atomic_write(path, envoy.render(http, grpc, metrics, Address(pipe=str(judge_socket(workspace.root, record.stack)))))
    done = processes.ask([str(envoy.binary()), *envoy.arguments(str(path), validate=True)], timeout=60)
    if done.returncode:
        raise LabError(f"Envoy refuses {path}", details=done.stderr.splitlines()[-5:])
