"""The local runtime: the same real ``tritonserver``, from its PyPI wheel, as a process of this machine.

A stack is found again by its state file, as far as the process groups that it names live (``groups``).
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import psutil

from labctl.architecture import SUPPORTED, architecture
from labctl.listener import Listener
from labctl.options import LOOPBACK
from labctl.plan import Plan
from labctl.runtimes import balancer, groups, layers, nvidia, processes, wheel
from labctl.runtimes.base import (
    UNLOADED,
    Exited,
    Part,
    State,
    Unloaded,
    require_plain_path,
    too_late,
    wait_until_stopped,
    why_it_ended,
)
from labctl.runtimes.compose_project import client_endpoints
from labctl.runtimes.processes import Command, as_they_come
from labctl.runtimes.record import REPLICA, Record, Replica, addresses
from labctl.triton import arguments
from labctl.workspace import Workspace
from labkit.errors import LabError

SHM = Path("/dev/shm")

# what, why and remedy of whatever only NVIDIA's image can do
NEEDS_IMAGE = (
    "TensorRT-LLM runs in NVIDIA's image only",
    "the local runtime takes Triton from its wheel, which has no such backend",
    "use --runtime compose, or --set engine=transformers",
)


class LocalRuntime:
    """Runs servers of one checkout as processes."""

    name = "local"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    def check(self, profile: str) -> None:
        if sys.platform != "linux" or architecture() not in SUPPORTED:
            raise LabError(
                f"the local runtime does not run on {sys.platform} {platform.machine()}",
                f"Triton's wheel is built for Linux ({' and '.join(SUPPORTED)}) only",
                "start a Docker engine and use --runtime compose",
                code="platform-unsupported",
            )
        for folder in (self.workspace.root, self.workspace.cache):
            require_plain_path(folder)
        wheel.find_wheel()
        if wheel.libpython() is None:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise LabError(
                f"this Python {version} has no shared libpython",
                "Triton's python backend links against it",
                f"apt-get install libpython{version} (Debian, Ubuntu), {wheel.OR_DOCKER}",
                code="libpython-missing",
            )

        if profile == "gpu":
            layers.require_pytorch(self.workspace)

    def prepare(self, listener: Listener, profile: str, plan: Plan | None = None) -> None:
        triton, cache = wheel.find_wheel(), self.workspace.backends_cache
        if triton.has_backends(cache):
            return
        listener.step("Triton's python backend")
        triton.make_backends(cache)
        listener.done("links into the wheel")

    def tool(self, listener: Listener, argv: Sequence[str]) -> str:
        return processes.run_step(Command([sys.executable, *argv], self._places), listener, argv)

    def client(self, listener: Listener, argv: Sequence[str] | None, record: Record | None) -> int:
        env = self._places
        if argv is not None:
            return processes.run_foreground(Command([sys.executable, *argv], env), listener)
        env["PATH"] = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH"))))
        beside = addresses(client_endpoints(record)) if record else {}
        return processes.run_foreground(Command([os.environ.get("SHELL") or "sh"], env | beside), listener)

    @property
    def _places(self) -> dict[str, str]:
        return {"LABS_ROOT": str(self.workspace.root), "LABS_CACHE": str(self.workspace.cache)}

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> Exited:
        folder, triton = self.workspace.folder(record.stack), wheel.find_wheel()
        watched: list[tuple[str, subprocess.Popen[bytes], Path | None]] = []
        if record.balance and not only:
            watched.append(("its balancer: ", balancer.start_process(self.workspace, record, listener), None))
        for server in record.starting(only):
            name = f"replica {server.number}: " if record.balance else ""
            ended = folder.ended_file(record.folder(server.number))
            watched.append((name, self._start(listener, triton, plan, record, server, ended), ended))

        def exited() -> str | None:
            for name, process, ended in watched:
                if (code := process.poll()) is not None:
                    return name + ((ended and groups.how_it_ended(ended)) or processes.describe_exit(code))
            return None

        return exited

    def _start(
        self, listener: Listener, triton: wheel.Wheel, plan: Plan, record: Record, server: Replica, ended: Path
    ) -> subprocess.Popen[bytes]:
        """Start one server in a process group of its own, which the stack's state file then names."""
        folder, number = self.workspace.folder(record.stack), record.folder(server.number)
        argv = plan.arguments(
            str(folder.repository),
            LOOPBACK,
            server.endpoints.ports,
            shm_prefix(self.workspace.root, record.stack, number),
            backend=str(triton.backends(self.workspace.backends_cache)),
            cache=str(triton.caches),
        )
        env = {**plan.server_env, **({REPLICA: str(number)} if number else {})}
        if layer := layers.packages_of(plan.served.packages, self.workspace, record.profile):
            env |= layer.environment
        if record.profile == "gpu" and (gpus := nvidia.gpus_of_server(plan.gpu, plan.ranks, number)):
            env["CUDA_VISIBLE_DEVICES"] = gpus

        def command(secret: str | None) -> list[str]:  # Triton takes it in no other way (docs/operate/security.md)
            return [str(triton.binary), *argv, *arguments.closing_arguments(record.options.client_shm, secret)]

        listener.command(command(arguments.SHOWN), env)
        ended.unlink(missing_ok=True)
        return groups.spawn(
            folder,
            groups.server_part(number),
            command(folder.read_secret()),
            wheel.environment(triton) | env,
            folder.log_file(number),
            folder.run_dir(),
            outlive=record.owner is None,
            ended=ended,
        )

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int | None = None) -> None:
        root, folder = self.workspace.root, self.workspace.folder(stack)
        parts = [group for group in groups.groups(folder) if number is None or group.number == number]
        servers = {group: process for group in parts if (process := group.server())}
        if servers and not force:
            if number is None:  # Triton waits for its connections to close: the balancer closes the idle ones
                balancer.release_servers(self.workspace, stack)
            unloaded = {group: unloaded_check(folder.log_file(group.number)) for group in servers}
            groups.send_signal(list(servers.values()), signal.SIGTERM)
            grace = 5 + max(map(_exit_timeout, servers.values()))

            def living() -> list[Unloaded]:
                return [unloaded[group] for group, process in servers.items() if groups.is_alive(process)]

            if not wait_until_stopped(living, grace):
                listener.note(too_late(grace))
        groups.end(parts)
        for path in regions(root, stack, number):
            path.unlink(missing_ok=True)
        if number is None:
            balancer.admin_socket(root, stack).unlink(missing_ok=True)
            folder.envoy_file.unlink(missing_ok=True)
            shutil.rmtree(folder.front, ignore_errors=True)

    def state(self, record: Record) -> State:
        folder, ended = self.workspace.folder(record.stack), dict[int, str]()
        parts = groups.groups(folder)
        living = {group.number for group in parts if group.server()}
        numbers = {server.number: record.folder(server.number) for server in record.servers}
        alive = frozenset(number for number, place in numbers.items() if place in living)
        for number in sorted(numbers.keys() - alive):
            if how := groups.how_it_ended(folder.ended_file(numbers[number])):
                ended[number] = why_it_ended(how, self.logs(record.stack, part=numbers[number]))
        balanced = not record.balance or any(group.members() for group in parts if group.part == groups.ENVOY)
        return State(record, alive, ended, None if balanced else "its balancer ended")

    def leftovers(self, stack: str) -> list[str]:
        found = []
        for group in groups.groups(self.workspace.folder(stack)):
            for process in group.members():
                with contextlib.suppress(psutil.Error):  # it has just ended
                    found.append(f"process {process.pid} ({process.name()})")
        return found + [str(path) for path in regions(self.workspace.root, stack)]

    def logs(self, stack: str, follow: bool = False, part: Part | None = None) -> Iterator[str]:
        folder = self.workspace.folder(stack)
        paths = [folder.log_file(part if isinstance(part, int) else None)]
        paths += folder.replica_logs if part is None else []
        if not paths[0].is_file():
            raise LabError(
                f"there is no log of '{stack}'", f"{paths[0]} does not exist", f"labctl up {stack}", code="log-missing"
            )

        def alive() -> bool:
            servers = [group.number for group in groups.groups(folder) if group.server()] if follow else []
            return part in servers if isinstance(part, int) else bool(servers)

        streams = [processes.follow_file(path, alive, time.sleep) for path in paths if path.is_file()]
        yield from as_they_come(streams) if follow else itertools.chain(*streams)


def shm_prefix(root: Path, stack: str, number: int | None = None) -> str:
    """How the names of a server's shared memory begin (a replica's as its stack's); none is the start of another's."""
    digest = hashlib.sha256(f"{root}\0{stack}".encode()).hexdigest()[:12]
    return f"labs-{digest}-{f'{number}-' if number else ''}"


def regions(root: Path, stack: str, number: int | None = None) -> list[Path]:
    """Return the shared memory of a stack's servers, or of that replica."""
    return sorted(SHM.glob(f"{shm_prefix(root, stack, number)}*"))


def unloaded_check(log: Path) -> Unloaded:
    """Whether a server whose log this is says after this call that it has unloaded its models."""
    size = log.stat().st_size if log.exists() else 0

    def has_unloaded() -> bool:
        with contextlib.suppress(OSError), log.open("rb") as stream:
            lost_its_older_half = log.stat().st_size < size
            stream.seek(0 if lost_its_older_half else size)
            return UNLOADED.encode() in stream.read()
        return False

    return has_unloaded


def _exit_timeout(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        for argument in process.cmdline():
            if argument.startswith("--exit-timeout-secs="):
                return int(argument.partition("=")[2])
    return 30
