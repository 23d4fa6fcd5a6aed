"""What stands before the servers of a stack on the local runtime: Envoy as a process, and its judge under --expose."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterable
from pathlib import Path

from labctl.guard import PROCESS_NAME, admin, envoy
from labctl.guard.admin import Seen
from labctl.guard.envoy import Address, Balance, Front, Server, assignments, receiver
from labctl.listener import Listener
from labctl.runtimes import processes
from labctl.runtimes.actions import Command
from labctl.runtimes.marks import admin_socket, judge_socket, marks
from labctl.runtimes.record import Record, Replica
from labctl.runtimes.yielding import let_others_first
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

ENVOY = "envoy"
NAMES = (ENVOY, PROCESS_NAME)


def commands(workspace: Workspace, record: Record) -> dict[str, Command]:
    """What is started, by the names of its processes. Raises LabError where Envoy is not installed."""
    if not record.front:
        return {}
    socket = f"unix:{judge_socket(workspace.root, record.stack)}"
    judge = [sys.executable, "-m", "labctl.guard.judge", socket, record.endpoints.http.split(",")[0]]
    front = [str(envoy.binary()), *envoy.arguments(str(workspace.folder(record.stack).envoy_file))]
    guard = {PROCESS_NAME: Command(judge, cwd=Path("/"))} if record.guarded else {}
    return {**guard, ENVOY: Command(front, cwd=Path("/"))}


def write(workspace: Workspace, record: Record) -> None:
    """Write Envoy's configuration and let Envoy judge it.

    Raises:
        LabError: it finds fault with it.
    """
    path, root = workspace.folder(record.stack).envoy_file, workspace.root
    pairs = zip(record.ports, vars(record.servers[0].endpoints).values(), strict=True)
    fronts = [Front(Address(record.bind, int(port)), [Address.of(server)]) for port, server in pairs]
    judge = str(judge_socket(root, record.stack)) if record.guarded else ""
    spread_ = None
    if record.balance:
        spread(workspace, record)
        spread_ = Balance(record.balance, workspace.folder(record.stack).front, str(admin_socket(root, record.stack)))
    trace = receiver(str(record.settings.get("trace", "")))
    atomic_write(path, envoy.render(*fronts, judge=judge, balance=spread_, trace=trace))
    done = processes.ask([str(envoy.binary()), *envoy.arguments(str(path), validate=True)], timeout=60)
    if done.returncode:
        raise LabError(f"Envoy refuses {path}", details=done.stderr.splitlines()[-5:])


def start(workspace: Workspace, record: Record, listener: Listener) -> dict[str, subprocess.Popen[bytes]]:
    """Start it, with a configuration that Envoy finds good; its processes, by what an error calls them."""
    write(workspace, record)
    parts = {}
    for name, command in commands(workspace, record).items():
        listener.command(command.argv)
        process = parts[f"its {record.front}, {name}"] = processes.spawn(
            command.argv,
            {**os.environ, **marks(workspace.root, record.stack)},
            workspace.folder(record.stack).log_file(),
            Path("/"),
            outlive=record.owner is None,
        )
        if name == ENVOY:
            let_others_first(process.pid)
    return parts


def spread(workspace: Workspace, record: Record, draining: Collection[int] = ()) -> None:
    """Name the servers to Envoy, which follows these files."""
    for name, text in assignments(_servers(record.servers, draining)).items():
        atomic_write(workspace.folder(record.stack).front / name, text)


def let_go(workspace: Workspace, stack: str) -> None:
    """Envoy gives the servers nothing new, asks no more how they are, and keeps only connections that are in use."""
    if (folder := workspace.folder(stack).front).is_dir():
        for name, text in assignments(()).items():
            atomic_write(folder / name, text)


def _servers(servers: Iterable[Replica], draining: Collection[int]) -> Iterable[Server]:
    for one in servers:
        http, grpc = Address.of(one.endpoints.http), Address.of(one.endpoints.grpc)
        yield Server(one.number, http, grpc, one.number in draining)


def seen(workspace: Workspace, record: Record) -> dict[int, Seen]:
    """The servers as Envoy sees them; {} where it does not answer."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        page = admin.clusters(str(admin_socket(workspace.root, record.stack)))
        return admin.seen(page, l4=record.balance == "l4")
    return {}
