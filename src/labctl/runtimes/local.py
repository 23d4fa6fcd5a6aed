"""The local runtime: the same real ``tritonserver``, from its PyPI wheel, as a process of this machine.

A stack is found again by its state file, as far as the process groups that were started for it live (``groups``).
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from labctl.runtimes import groups, layers, local_server, nvidia, processes, wheel
from labctl.runtimes.base import Unloaded, too_late, unloaded_check, wait_until_stopped, why_it_ended
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.local_server import LocalServer, admin_socket, start_front
from labctl.runtimes.processes import Command, as_they_come
from labctl.runtimes.record import REPLICA, Endpoints, Record, Replica, addresses
from labctl.triton import arguments
from labctl.workspace import Workspace
from labkit.errors import LabError

SERVER = "tritonserver"
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
            wheel.require_plain_path(folder)
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

    def server_path(self, path: Path) -> str:
        return str(path)

    client_path = server_path

    def client_endpoints(self, record: Record) -> Endpoints:
        return Endpoints(**record.scrape_endpoints)

    def minutes(self, profile: str, image: str, packages: str) -> list[int]:
        return []

    def prepare(self, listener: Listener, profile: str, image: str = "", packages: str = "") -> None:
        triton, cache = wheel.find_wheel(), self.workspace.backends_cache
        if triton.has_backends(cache):
            return
        listener.step("Triton's python backend")
        triton.make_backends(cache)
        listener.done("links into the wheel")

    def _python(self, argv: Sequence[str]) -> Command:
        root, cache = str(self.workspace.root), str(self.workspace.cache)
        return Command([sys.executable, *argv], {"LABS_ROOT": root, "LABS_CACHE": cache})

    def tool(self, listener: Listener, argv: Sequence[str]) -> str:
        return processes.run_step(self._python(argv), listener, argv)

    def in_image(self, listener: Listener, argv: Sequence[str], image: str, gpu: str) -> None:
        raise LabError(*NEEDS_IMAGE, code="image-needed")

    def copy_out(self, listener: Listener, image: str, path: str, target: Path, version: str) -> None:
        raise LabError(*NEEDS_IMAGE, code="image-needed")

    def client(self, listener: Listener, argv: Sequence[str], stack: str) -> int:
        return processes.run_foreground(self._python(argv), listener)

    def shell(self, listener: Listener, record: Record) -> int:
        path = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH"))))
        env = {**self._python(()).env, **addresses(self.client_endpoints(record)), "PATH": path}
        return processes.run_foreground(Command([os.environ.get("SHELL") or "sh"], env), listener)

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> LocalServer:
        parts = start_front(self.workspace, record, listener) if record.balance and not only else {}
        triton = wheel.find_wheel()
        for server in record.starting(only):
            name = f"replica {server.number}" if record.balance else ""
            parts[name] = self._start(listener, triton, plan, record, server)
        return LocalServer(parts, self.workspace.folder(record.stack))

    def _start(
        self, listener: Listener, triton: wheel.Wheel, plan: Plan, record: Record, server: Replica
    ) -> subprocess.Popen[bytes]:
        """Start one server in a process group of its own, which the stack's folder then names."""
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

        def command(secret: str) -> list[str]:  # Triton takes it in no other way (docs/operate/security.md)
            return [str(triton.binary), *argv, *arguments.closing_arguments(record.options.client_shm, secret)]

        listener.command(command(arguments.SHOWN), env)
        ended = folder.ended_file(number)
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

    def front(self, listener: Listener, record: Record) -> None:
        folder = self.workspace.folder(record.stack)
        groups.end(folder, [group for group in groups.groups(folder) if group.part == groups.ENVOY])
        start_front(self.workspace, record, listener)

    def spread(self, record: Record, draining: Collection[int] = ()) -> None:
        local_server.spread_requests(self.workspace, record, draining)

    def balancer_view(self, record: Record) -> dict[int, UpstreamHealth]:
        return local_server.servers_seen(self.workspace, record)

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int = 0) -> None:
        root, folder = self.workspace.root, self.workspace.folder(stack)
        parts = [group for group in groups.groups(folder) if number in (0, group.number)]
        servers = {group: process for group in parts if (process := server_process(group))}
        if servers and not force:
            if not number:  # Triton waits for its connections to close: the balancer closes the idle ones
                local_server.let_go_of_servers(self.workspace, stack)
            unloaded = {group: unloaded_check(folder.log_file(group.number or 0)) for group in servers}
            groups.send(list(servers.values()), signal.SIGTERM)
            grace = 5 + max(map(_exit_timeout, servers.values()))

            def living() -> list[Unloaded]:
                return [unloaded[group] for group, process in servers.items() if groups.is_alive(process)]

            if not wait_until_stopped(living, grace):
                listener.note(too_late(grace))
        groups.end(folder, parts)
        for path in regions(root, stack, number):
            path.unlink(missing_ok=True)
        if not number:
            admin_socket(root, stack).unlink(missing_ok=True)
            folder.envoy_file.unlink(missing_ok=True)
            shutil.rmtree(folder.front, ignore_errors=True)

    def running(self) -> list[Record]:
        return [record for folder in self.workspace.folders() if (record := self.find(folder.name))]

    def stacks(self) -> set[str]:
        return {folder.name for folder in self.workspace.folders() if groups.groups(folder)}

    def find(self, stack: str) -> Record | None:
        folder = self.workspace.folder(stack)
        try:
            record = Record.read(folder.state_file)
        except (OSError, ValueError, LookupError, TypeError):
            return None
        if (record.runtime, record.stack) != (self.name, stack):
            return None
        living = {group.number: process for group in groups.groups(folder) if (process := server_process(group))}
        servers = [server for server in record.servers if record.folder(server.number) in living]
        if not servers:
            return None
        first = living[record.folder(servers[0].number)]
        return dataclasses.replace(record, servers=servers, server={"pid": first.pid})

    def death_of(self, stack: str, number: int = 0) -> str:
        folder, deaths = self.workspace.folder(stack), []
        for path in (folder.ended_file(number), *([] if number else folder.ended_files)):
            if how := groups.how_it_ended(path):
                replica = "" if number else path.stem.partition("-")[2]
                how = why_it_ended(how, self.logs(stack, number=number or int(replica or 0)))
                deaths.append(f"replica {replica}: {how}" if replica else how)
        return "; ".join(deaths)

    def front_death(self, record: Record) -> str:
        parts = groups.groups(self.workspace.folder(record.stack))
        ended = record.balance and not any(group.members() for group in parts if group.part == groups.ENVOY)
        return "its balancer ended" if ended else ""

    def logs(self, stack: str, follow: bool = False, number: int = 0) -> Iterator[str]:
        folder = self.workspace.folder(stack)
        paths = [folder.log_file(max(number, 0)), *([] if number else folder.replica_logs)]
        if not paths[0].is_file():
            raise LabError(
                f"there is no log of '{stack}'", f"{paths[0]} does not exist", f"labctl up {stack}", code="log-missing"
            )

        def alive() -> bool:
            if not follow or (record := self.find(stack)) is None:
                return False
            return number < 1 or number in [server.number for server in record.servers]

        streams = [processes.follow_file(path, alive, time.sleep) for path in paths if path.is_file()]
        yield from as_they_come(streams) if follow else itertools.chain(*streams)

    def leftovers(self, stack: str) -> list[str]:
        found = []
        for group in groups.groups(self.workspace.folder(stack)):
            for process in group.members():
                with contextlib.suppress(psutil.Error):  # it has just ended
                    found.append(f"process {process.pid} ({process.name()})")
        return found + [str(path) for path in regions(self.workspace.root, stack)]


def server_process(group: groups.ProcessGroup) -> psutil.Process | None:
    """Return the tritonserver of a group; None where it has ended, or the group is no server's."""
    if group.number is not None:
        for process in group.members():
            with contextlib.suppress(psutil.Error):  # it has just ended
                if process.name() == SERVER:
                    return process
    return None


def shm_prefix(root: Path, stack: str, number: int = 0) -> str:
    """How the names of a server's shared memory begin (a replica's as its stack's); none is the start of another's."""
    digest = hashlib.sha256(f"{root}\0{stack}".encode()).hexdigest()[:12]
    return f"labs-{digest}-{f'{number}-' if number else ''}"


def regions(root: Path, stack: str, number: int = 0) -> list[Path]:
    """Return the shared memory of a stack's servers, or of that replica."""
    return sorted(SHM.glob(f"{shm_prefix(root, stack, number)}*"))


def _exit_timeout(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        for argument in process.cmdline():
            if argument.startswith("--exit-timeout-secs="):
                return int(argument.partition("=")[2])
    return 30
