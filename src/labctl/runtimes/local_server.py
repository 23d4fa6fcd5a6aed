"""A server on the local runtime: its command, its process, and how whoever started it sees it end."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from labctl.runtimes import layers, processes, wheel
from labctl.runtimes.actions import Command
from labctl.runtimes.base import Launch
from labctl.runtimes.marks import RECORD, REPLICA, hide, marks, shm_prefix
from labctl.runtimes.record import Record, Replica
from labctl.triton import secret
from labctl.triton.arguments import server_arguments
from labctl.workspace import Workspace

LARGEST_REGION = 64 * 2**20  # bytes; a text that is larger is refused before it is copied into shared memory for good


class LocalServer:
    """The servers that this very process started, and what stands before them.

    Args:
        parts: their processes, by what an error calls them; "" is a stack's only server.
    """

    def __init__(self, parts: Mapping[str, subprocess.Popen[bytes]], record: Record, root: Path) -> None:
        self._parts, self._record, self._root = parts, record, root

    def serves(self) -> None:
        hide(self._root, self._record.stack)

    @property
    def record(self) -> Record:
        return self._record

    def exited(self) -> str | None:
        for who, process in self._parts.items():
            if (code := process.poll()) is not None:
                return f"{who}: {processes.describe_exit(code)}" if who else processes.describe_exit(code)
        return None


def command(workspace: Workspace, launch: Launch, server: Replica, key: str) -> Command:
    """How one server is started, with the secret ``key``."""
    record, triton = launch.record, wheel.find_wheel()
    number = record.folder(server.number)
    http, grpc, metrics = (int(endpoint.rpartition(":")[2]) for endpoint in dataclasses.astuple(server.endpoints))
    prefix = shm_prefix(workspace.root, record.stack, number)
    arguments = server_arguments(
        str(launch.repository),
        address="127.0.0.1",
        ports=(http, grpc, metrics),
        shm_prefix=prefix,
        exit_timeout=launch.exit_timeout,
        backends=str(wheel.backends(triton, workspace.backends_cache)),
        caches=str(triton.caches),
        extra=launch.server_args,
    )
    kept = [sys.executable, "-m", "labctl.runtimes.keeper", "--restarts", str(record.options.supervise),
            "--ended", str(workspace.folder(record.stack).ended_file(number)), "--regions", f"/dev/shm/{prefix}*",
            "--largest", str(LARGEST_REGION), "--"]  # fmt: skip
    closed = secret.arguments(
        key, record.options.client_shm
    )  # Triton takes it in no other way (docs/operate/security.md)
    env = {**launch.env, **({REPLICA: str(number)} if number else {})}
    if launch.packages:
        env |= layers.layer(launch.packages, workspace).environment
    if launch.devices:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(launch.devices)
    return Command([*kept, str(triton.binary), *arguments, *closed], env, cwd=launch.run_dir)


def spawn(workspace: Workspace, launch: Launch, server: Replica) -> subprocess.Popen[bytes]:
    """Start it; its environment has the stack's record, by which it is found again."""
    record, number = launch.record, launch.record.folder(server.number)
    workspace.folder(record.stack).ended_file(number).unlink(missing_ok=True)
    started = command(workspace, launch, server, secret.read(workspace, record.stack))
    own = {**marks(workspace.root, record.stack), RECORD: record.to_json()}
    return processes.spawn(
        started.argv,
        wheel.environment(wheel.find_wheel()) | dict(started.env) | own,
        workspace.folder(record.stack).log_file(number),
        cwd=launch.run_dir,
        outlive=record.owner is None,
    )
