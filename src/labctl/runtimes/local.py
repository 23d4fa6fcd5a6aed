"""The local runtime: the same real ``tritonserver``, from its PyPI wheel, as a process of this machine.

The embedded default when no Docker engine answers. The server runs in a process group of its own and outlives
``labctl up``. It is found again through its own environment, which carries the stack's record: nothing can go stale,
because a process that is gone takes its record with it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from labctl import secret
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.runtimes import keeper, local_guard, nvidia, processes, wheel
from labctl.runtimes.actions import Action, Command
from labctl.runtimes.arguments import server_arguments
from labctl.runtimes.base import Endpoints, Launch, Record
from labctl.runtimes.marks import PROMETHEUS, RECORD, ROOT, SERVER, STACK, STUB, hide, leavings, shm_prefix
from labctl.runtimes.tools import progress_of, tool_failed
from labctl.workspace import Workspace

OUR_PROCESSES = (SERVER, STUB, keeper.NAME, *local_guard.NAMES, PROMETHEUS)

LARGEST_REGION = 64 * 2**20  # bytes; a text that is larger is refused before it is copied into shared memory for good


# what, why and remedy of whatever only NVIDIA's image can do
NEEDS_IMAGE = (
    "TensorRT-LLM runs in NVIDIA's image only",
    "the local runtime takes Triton from its wheel, which has no such backend",
    "use --runtime compose, or --set engine=transformers",
)


class LocalServer:
    """A server that this very process started, and its guard, if it has one."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        record: Record,
        root: Path,
        guard: Sequence[subprocess.Popen[bytes]] = (),
    ) -> None:
        self._process = process
        self._record = record
        self._root = root
        self._guard = guard

    def serves(self) -> None:
        hide(self._root, self._record.stack)

    @property
    def record(self) -> Record:
        return self._record

    def exited(self) -> str | None:
        for process, who in ((self._process, ""), *((process, "its guard: ") for process in self._guard)):
            if (code := process.poll()) is not None:
                return who + processes.describe_exit(code)
        return None


class LocalRuntime:
    """Runs servers of one checkout as processes."""

    name = "local"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace

    # -- before a start ------------------------------------------------------------------------------------------

    def check(self, profile: str) -> None:
        if (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise LabError(
                f"the local runtime does not run on {sys.platform} {platform.machine()}",
                "Triton's wheel is built for Linux x86_64 only",
                "start a Docker engine and use --runtime compose",
            )
        wheel.find_wheel()
        if wheel.libpython() is None:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            raise LabError(
                f"this Python {version} has no shared libpython",
                "Triton's python backend links against it",
                f"apt-get install libpython{version} (Debian, Ubuntu), {wheel.OR_DOCKER}",
            )

        if profile == "gpu":
            wheel.require_cuda(nvidia.gpus())

    def server_path(self, path: Path) -> str:
        return str(path)

    client_path = server_path

    def client_endpoints(self, record: Record) -> Endpoints:
        return record.endpoints

    # -- what can be done ----------------------------------------------------------------------------------------

    def prepare(self, profile: str, image: str = "", guarded: bool = False) -> list[Action[str]]:
        triton = wheel.find_wheel()
        folder = wheel.backends(triton, self.workspace.backends_cache)
        if wheel.is_backend_folder(folder, triton):
            return []

        def do(listener: Listener) -> str:
            wheel.make_backend_folder(folder, triton)
            return "links into the wheel"

        return [Action("Triton's python backend", do, files=[f"{folder}/"])]

    def _python(self, argv: Sequence[str]) -> Command:
        root, cache = str(self.workspace.root), str(self.workspace.cache)
        return Command([sys.executable, *argv], {"LABS_ROOT": root, "LABS_CACHE": cache})

    def tool(self, title: str, argv: Sequence[str]) -> Action[str]:
        command = self._python(argv)

        def do(listener: Listener) -> str:
            code, out, tail = processes.run_tool(command, listener, progress_of(listener))
            if code:
                raise tool_failed(argv, processes.describe_exit(code), tail)
            return out

        return Action(title, do, [command])

    def in_image(self, title: str, argv: Sequence[str], image: str, gpus: int) -> Action[None]:
        raise LabError(*NEEDS_IMAGE)

    def copy_out(self, title: str, image: str, path: str, target: Path) -> Action[str]:
        raise LabError(*NEEDS_IMAGE)

    def client(self, title: str, argv: Sequence[str], stack: str) -> Action[int]:
        command = self._python(argv)
        return Action(title, lambda listener: processes.run_foreground(command, listener), [command])

    def start(self, launch: Launch) -> Action[LocalServer]:
        record, triton = launch.record, wheel.find_wheel()
        own = record.behind or record.endpoints
        http, grpc, metrics = (int(e.rpartition(":")[2]) for e in dataclasses.astuple(own))
        prefix = shm_prefix(self.workspace.root, record.stack)
        guard = local_guard.commands(self.workspace, record) if record.behind else []
        arguments = server_arguments(
            str(launch.repository),
            address="127.0.0.1",
            ports=(http, grpc, metrics),
            shm_prefix=prefix,
            exit_timeout=launch.exit_timeout,
            backends=str(wheel.backends(triton, self.workspace.backends_cache)),
            extra=launch.server_args,
        )
        shown = secret.arguments(secret.SHOWN, record.client_shm)
        ended = self.workspace.ended_file(record.stack)
        kept = [sys.executable, "-m", "labctl.runtimes.keeper", "--restarts", str(launch.restarts),
                "--ended", str(ended), "--regions", f"/dev/shm/{prefix}*",
                "--largest", str(LARGEST_REGION), "--"]  # fmt: skip
        command = Command([*kept, str(triton.binary), *arguments, *shown], launch.env, cwd=launch.run_dir)

        def do(listener: Listener) -> LocalServer:
            outlive = record.owner is None
            ended.unlink(missing_ok=True)
            own = {ROOT: str(self.workspace.root), STACK: record.stack}
            if guard:
                local_guard.write(self.workspace, record)
            before = []
            for part in guard:
                listener.command(part.argv)
                before.append(processes.spawn(part.argv, {**os.environ, **own}, launch.log_file, Path("/"), outlive))
            env = wheel.environment(triton) | dict(launch.env) | own | {RECORD: record.to_json()}
            listener.command(command.argv)
            # Triton takes its secret in no other way (docs/security.md).
            closed = secret.arguments(secret.read(self.workspace, record.stack), record.client_shm)
            process = processes.spawn(
                [*kept, str(triton.binary), *arguments, *closed],
                env,
                launch.log_file,
                cwd=launch.run_dir,
                outlive=outlive,
            )
            started = dataclasses.replace(record, server={"pid": process.pid})
            return LocalServer(process, started, self.workspace.root, before)

        files = [str(local_guard.config_file(self.workspace, record.stack))] if guard else []
        return Action(f"the server of {record.stack}", do, [*guard, command], files)

    def stop(self, stack: str, force: bool = False) -> Action[None]:
        return Action(f"{stack} goes", lambda listener: self._stop(stack, listener, force))

    def _stop(self, stack: str, listener: Listener, force: bool) -> None:
        servers = [p for p, _ in self._ours(stack) if p.info["name"] == SERVER]
        keepers = [p for p, _ in self._ours(stack) if p.info["name"] == keeper.NAME]
        if servers and not force:
            _signal(keepers or servers, signal.SIGTERM)  # a keeper hands it on
            grace = 5 + max((_exit_timeout(p) for p in servers), default=0)
            _, servers = psutil.wait_procs(servers, timeout=grace)
            if servers:
                listener.note(f"the server did not stop within {grace:g} s and is killed")
        remaining = [process for process, _ in self._ours(stack)]
        remaining.sort(key=lambda process: process.info["name"] != keeper.NAME)  # first who would restart it
        _signal(remaining, signal.SIGKILL)
        psutil.wait_procs(remaining, timeout=10)
        for path in leavings(self.workspace.root, stack):
            path.unlink(missing_ok=True)
        local_guard.config_file(self.workspace, stack).unlink(missing_ok=True)

    # -- what is there -------------------------------------------------------------------------------------------

    def _ours(self, stack: str | None = None) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
        """The processes of this checkout's stacks, servers and stubs alike, with their environment."""
        for process in psutil.process_iter(["name", "status"]):
            # The kernel cuts names at 15 characters; psutil gives them whole where the command line has them.
            known = process.info["name"].startswith(tuple(name[:15] for name in OUR_PROCESSES))
            if not known or process.info["status"] == psutil.STATUS_ZOMBIE:
                continue
            with contextlib.suppress(psutil.Error):
                env = process.environ()
                if env.get(ROOT) == str(self.workspace.root) and stack in (None, env.get(STACK)):
                    yield process, env

    def running(self) -> list[Record]:
        records = []
        for process, env in self._ours():
            if process.info["name"] == SERVER:
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    record = Record.from_json(env[RECORD])
                    records.append(dataclasses.replace(record, server={"pid": process.pid}))
        return records

    def stacks(self) -> set[str]:
        return {env[STACK] for _, env in self._ours()}

    def find(self, stack: str) -> Record | None:
        return next((record for record in self.running() if record.stack == stack), None)

    def ended(self, stack: str) -> str:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            ending = json.loads(self.workspace.ended_file(stack).read_text())
            return str(ending["how"]) + (f", after {ending['restarts']} restarts" if ending["restarts"] else "")
        return ""

    def guard_ended(self, record: Record) -> str:
        there = {process.info["name"] for process, _ in self._ours(record.stack)} if record.behind else ()
        gone = [name for name in local_guard.NAMES if record.behind and name not in there]
        return f"its guard: {' and '.join(gone)} ended" if gone else ""

    def logs(self, stack: str, follow: bool = False) -> Iterator[str]:
        path = self.workspace.log_file(stack)
        if not path.is_file():
            raise LabError(f"there is no log of '{stack}'", f"{path} does not exist", f"labctl up {stack}")
        yield from processes.follow(path, lambda: follow and self.find(stack) is not None, time.sleep)

    def leftovers(self, stack: str) -> list[str]:
        left = [f"process {p.pid} ({p.info['name']})" for p, _ in self._ours(stack)]
        return left + [str(path) for path in leavings(self.workspace.root, stack)]


def _signal(victims: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in victims:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _exit_timeout(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error):
        for argument in process.cmdline():
            if argument.startswith("--exit-timeout-secs="):
                return int(argument.partition("=")[2])
    return 30
