"""The local runtime: the same real ``tritonserver``, from its PyPI wheel, as a process of this machine.

It is found again through its own environment, which carries the stack's record: a process that is gone takes its record
with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from labctl.runtimes import keeper, layers, leftovers, local_server, nvidia, processes, wheel
from labctl.runtimes.base import too_late, unloaded_check, wait_until_stopped
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.leftovers import DOOR, PROMETHEUS, RECORD, REPLICA, SERVER, STACK, STUB, is_alive
from labctl.runtimes.local_server import ENVOY, LocalServer, start_front
from labctl.runtimes.processes import Command, as_they_come
from labctl.runtimes.record import Endpoints, Record, Replica, addresses, merge_records
from labctl.runtimes.series import PROGRAM, Series
from labctl.triton import arguments
from labctl.workspace import Workspace
from labkit import nofollow
from labkit.errors import LabError

OUR_PROCESSES = (SERVER, STUB, keeper.NAME, ENVOY, PROMETHEUS, DOOR)

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

        if profile == "gpu" and not layers.Layer(layers.NAMES[0], self.workspace, gpu=True).ready:
            wheel.require_cuda(nvidia.gpus())

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
        listener.file(f"{triton.backends(cache)}/")
        if not listener.dry:
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

    def clients(self, stack: str) -> Series:
        return Series(self._python(PROGRAM), contextlib.nullcontext)

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> LocalServer:
        started, workspace = record, self.workspace
        parts = start_front(workspace, record, listener) if record.front and not only else {}
        for server in record.starting(only):
            command = self._server(plan, record, server, arguments.SHOWN)
            listener.command(command.argv, command.env)
            if not listener.dry:
                process = self._spawn(plan, record, server)
                parts[f"replica {server.number}" if record.balance else ""] = process
                started = dataclasses.replace(record, server={"pid": process.pid})
        return LocalServer(parts, started, workspace.root)

    def _server(self, plan: Plan, record: Record, server: Replica, secret: str) -> Command:
        folder, triton = self.workspace.folder(record.stack), wheel.find_wheel()
        number = record.folder(server.number)
        prefix = leftovers.shm_prefix(self.workspace.root, record.stack, number)
        argv = plan.arguments(
            str(folder.repository),
            LOOPBACK,
            server.endpoints.ports,
            prefix,
            backend=str(triton.backends(self.workspace.backends_cache)),
            cache=str(triton.caches),
        )
        # Triton takes the secret in no other way (docs/operate/security.md).
        argv += arguments.closing_arguments(record.options.client_shm, secret)
        ended, restarts = folder.ended_file(number), str(record.options.supervise)
        argv = leftovers.keeper_command([str(triton.binary), *argv], ended, prefix, "--restarts", restarts)
        env = {**plan.server_env, **({REPLICA: str(number)} if number else {})}
        if layer := layers.packages_of(plan.stack.packages, self.workspace, record.profile):
            env |= layer.environment
        if plan.gpu:
            env["CUDA_VISIBLE_DEVICES"] = plan.gpu
        return Command(argv, env, cwd=folder.run_dir())

    def _spawn(self, plan: Plan, record: Record, server: Replica) -> subprocess.Popen[bytes]:
        """Start a server; its environment has the stack's record, by which it is found again."""
        folder, number = self.workspace.folder(record.stack), record.folder(server.number)
        folder.ended_file(number).unlink(missing_ok=True)
        command = self._server(plan, record, server, folder.read_secret())
        marks = {**leftovers.marks(self.workspace.root, record.stack), RECORD: record.to_json()}
        env = wheel.environment(wheel.find_wheel()) | dict(command.env) | marks
        log, outlive = folder.log_file(number), record.owner is None
        return processes.spawn(command.argv, env, log, folder.run_dir(), outlive)

    def front(self, listener: Listener, record: Record) -> None:
        if not listener.dry:
            _end([process for process, _ in self._ours(record.stack, (ENVOY,))])
        start_front(self.workspace, record, listener)

    def spread(self, record: Record, draining: Collection[int] = ()) -> None:
        local_server.spread_requests(self.workspace, record, draining)

    def balancer_view(self, record: Record) -> dict[int, UpstreamHealth]:
        return local_server.servers_seen(self.workspace, record)

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int = 0) -> None:
        root, folder = self.workspace.root, self.workspace.folder(stack)
        if listener.dry:  # no command ends it
            return

        def ours(*names: str) -> list[psutil.Process]:
            every = self._ours(stack, names or OUR_PROCESSES)
            return [process for process, env in every if not number or env.get(REPLICA) == str(number)]

        servers, keepers = ours(SERVER), ours(keeper.NAME)
        if servers and not force:
            if not number:  # Triton waits for its connections to close: the balancer closes the idle ones
                local_server.let_go_of_servers(self.workspace, stack)
            unloaded = {server: unloaded_check(folder.log_file(_replica(server))) for server in servers}
            leftovers.send_signal(keepers or servers, signal.SIGTERM)  # a keeper hands it on
            grace = 5 + max(map(_exit_timeout, servers))
            if not wait_until_stopped(lambda: [unloaded[server] for server in servers if is_alive(server)], grace):
                listener.note(too_late(grace))
        _end(ours())
        for path in leftovers.regions(root, stack, number) if number else leftovers.leftover_paths(root, stack):
            path.unlink(missing_ok=True)
        if not number:
            folder.envoy_file.unlink(missing_ok=True)
            shutil.rmtree(folder.front, ignore_errors=True)

    def _ours(
        self, stack: str | None = None, names: Collection[str] = OUR_PROCESSES
    ) -> list[tuple[psutil.Process, dict[str, str]]]:
        """The processes of that name of this checkout's stacks, with their environment."""
        every = leftovers.our_processes(self.workspace.root, names)
        return [(process, env) for process, env in every if stack in (None, env.get(STACK))]

    def running(self) -> list[Record]:
        by_stack: dict[str, dict[int, Record]] = {}  # and by the number of the server
        for process, env in self._ours(names=(SERVER,)):
            if not leftovers.is_unkillable(process.pid):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    record = dataclasses.replace(Record.from_json(env[RECORD]), server={"pid": process.pid})
                    by_stack.setdefault(record.stack, {})[int(env.get(REPLICA) or 1)] = record
        return [
            dataclasses.replace(merge_records(records), server=records[min(records)].server)
            for records in by_stack.values()
        ]

    def stacks(self) -> set[str]:
        return {env[STACK] for _, env in self._ours()}

    def find(self, stack: str) -> Record | None:
        return next((record for record in self.running() if record.stack == stack), None)

    def death_of(self, stack: str, number: int = 0) -> str:
        folder, deaths = self.workspace.folder(stack), []
        for path in (folder.ended_file(number), *([] if number else folder.ended_files)):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                ended = nofollow.read_object(path)
                how = str(ended["how"])
                if ended["restarts"]:
                    how += f", after {ended['restarts']} restarts"
                replica = "" if number else path.stem.partition("-")[2]
                deaths.append(f"replica {replica}: {how}" if replica else how)
        return "; ".join(deaths)

    def front_death(self, record: Record) -> str:
        ended = record.front and not self._ours(record.stack, (ENVOY,))
        return f"its {record.front} ended" if ended else ""

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
        running = [f"process {process.pid} ({process.info['name']})" for process, _ in self._ours(stack)]
        return running + [str(path) for path in leftovers.leftover_paths(self.workspace.root, stack)]


def _end(remaining: list[psutil.Process]) -> None:
    remaining.sort(key=lambda process: process.info["name"] != keeper.NAME)  # first what would restart the others
    leftovers.kill(remaining, time.monotonic() + 10)
    psutil.wait_procs(remaining, timeout=0)  # those that are our own children


def _replica(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error, ValueError):
        return int(process.environ().get(REPLICA, 0))
    return 0


def _exit_timeout(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        for argument in process.cmdline():
            if argument.startswith("--exit-timeout-secs="):
                return int(argument.partition("=")[2])
    return 30
