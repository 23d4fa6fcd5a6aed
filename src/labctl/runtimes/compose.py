"""The compose runtime: a stack is a Compose project of its own, described by ``compose.yaml`` and found by labels.

``docker compose`` is run for what changes things (build, up, run, down), each in a process group of our own; the
engine is asked directly for what is (docker_engine.py). Compose's exit status alone is never believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from labctl import secret as own_secret
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.runtimes import calls, images, processes
from labctl.runtimes.actions import Action, Command
from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.base import Endpoints, Launch, Record
from labctl.runtimes.calls import BUILDER, REPORT
from labctl.runtimes.compose_projects import NOBODY, Projects
from labctl.runtimes.compose_server import ComposeServer
from labctl.runtimes.hub_token import hub_token, pipe
from labctl.runtimes.tools import progress_of, tool_failed
from labctl.workspace import Workspace, atomic_write, replace_dir

KEPT_LOG_LINES = 20_000
PULL_MINUTES, BUILD_MINUTES = 15, 4  # of one image, on an everyday connection


class ComposeRuntime:
    """Runs the stacks of one checkout in containers."""

    name = "compose"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._root = str(workspace.root)
        self._projects = Projects(workspace)

    def check(self, profile: str) -> None:
        from labctl.runtimes import docker_engine

        docker_engine.engine()
        docker_engine.require_compose()
        if profile == "gpu":
            docker_engine.require_gpu()
        self._projects.require_readable_cache()

    def server_path(self, path: Path) -> str:
        return self._projects.inside(path, server=True)

    def client_path(self, path: Path) -> str:
        return self._projects.inside(path, server=False)

    def client_endpoints(self, record: Record) -> Endpoints:
        return Endpoints(f"triton:{HTTP}", f"triton:{GRPC}", f"triton:{METRICS}")

    # -- what can be done ----------------------------------------------------------------------------------------

    def prepare(self, profile: str, image: str = "") -> list[Action[str]]:
        builds = calls.builds(self._projects, profile, image)
        made = [self._build(name, command) for name, command in builds.items() if not _there(name)]
        if image and not _there(image):  # also its digest is wanted, which a build alone would not keep
            made.insert(0, self._pull(image))
        return made

    def _pull(self, image: str) -> Action[str]:
        command = calls.pull(image)

        def do(listener: Listener) -> str:
            self._run(command, listener, f"image {image} cannot be pulled")
            return "pulled"

        return Action(f"image {image} (many gigabytes)", do, [command], minutes=PULL_MINUTES)

    def _build(self, name: str, command: Command) -> Action[str]:
        def do(listener: Listener) -> str:
            # Compose 2.26 tells of a build on stdout
            code, _, tail = processes.run_tool(command, listener, listener.progress, merged=True)
            if code or not images.exists(name):
                raise LabError(
                    f"image {name} cannot be built", processes.describe_exit(code),
                    "the last lines show why; behind a proxy set LABS_CA_BUNDLE, without a package index LABS_WHEELS",
                    details=tail,
                )  # fmt: skip
            return "built"

        return Action(f"image {name}", do, [command], minutes=BUILD_MINUTES)

    def _run(self, command: Command, listener: Listener, failed: str) -> str:
        code, out, tail = processes.run_tool(command, listener, listener.progress)
        if code:
            raise LabError(failed, processes.describe_exit(code), "the last lines show why", details=tail)
        return out

    def tool(self, title: str, argv: Sequence[str]) -> Action[str]:
        image = images.server_image(self.workspace, calls.TOOLS)
        arguments = [self._argument(text) for text in argv]
        command = calls.one_shot(self._projects, self._name(BUILDER, "engine-builder"), image, arguments)

        def do(listener: Listener) -> str:
            with contextlib.ExitStack() as cleaning:
                env = dict(command.env)
                if token := hub_token():
                    secret = self.workspace.stack_dir(BUILDER) / f"hub-token-{os.getpid()}"
                    env["LABS_HUB_TOKEN_FILE"] = str(cleaning.enter_context(pipe(secret, token)))
                return self._one_shot(dataclasses.replace(command, env=env), argv, listener)

        return Action(title, do, [command])

    def in_image(self, title: str, argv: Sequence[str], image: str, gpus: int) -> Action[None]:
        server = images.server_image(self.workspace, "gpu", image)
        name, arguments = self._name(BUILDER, "engine-builder"), [self._seen(text) for text in argv]
        command = calls.one_shot(self._projects, name, server, arguments, "gpu", gpus)

        def do(listener: Listener) -> None:
            self._one_shot(command, argv, listener)

        return Action(title, do, [command])

    def _one_shot(self, command: Command, argv: Sequence[str], listener: Listener) -> str:
        self.workspace.cache.mkdir(parents=True, exist_ok=True)
        with self._cleaned(BUILDER, command):
            code, out, tail = processes.run_tool(command, listener, progress_of(listener))
        if code:
            raise tool_failed(argv, processes.describe_exit(code), tail)
        return out

    def _name(self, project: str, service: str) -> str:
        """Of a container that only this process makes."""
        return f"{self._projects.name(project)}-{service}-{os.getpid()}"

    @contextlib.contextmanager
    def _cleaned(self, project: str, command: Command) -> Iterator[None]:
        """The container of a one-shot command is gone at the end of the block, however that comes about."""
        from labctl.runtimes import docker_engine

        try:
            yield
        finally:
            docker_engine.remove(command.container.partition(":")[0])
            if project in (BUILDER, REPORT):  # Compose makes a network also for those who have no use of it
                docker_engine.discard(docker_engine.networks(self._root, project))

    def _argument(self, text: str) -> str:
        """A person's own folder is refused where the containers cannot see it."""
        path = Path(text)
        return self._projects.inside(path, server=False) if path.is_absolute() and path.exists() else self._seen(text)

    def _seen(self, text: str) -> str:
        """A path below the cache or models/ as the containers see it; anything else is left alone."""
        mounted = any(Path(text).is_relative_to(folder) for folder in (self.workspace.cache, self.workspace.models))
        return self._projects.inside(Path(text), server=False) if mounted else text

    def copy_out(self, title: str, image: str, path: str, target: Path) -> Action[str]:
        server = images.server_image(self.workspace, "gpu", image)
        name = self._name("templates", "copy")

        def do(listener: Listener) -> str:
            with replace_dir(target) as fresh:
                *commands, remove = calls.copy_out(server, name, path, fresh)
                try:
                    for command in commands:
                        self._run(command, listener, f"{path} cannot be copied out of {image}")
                finally:
                    self._run(remove, listener, f"container {name} cannot be removed")
            return "copied out of the image"

        return Action(title, do, calls.copy_out(server, name, path, target), [f"{target}/"])

    def start(self, launch: Launch) -> Action[ComposeServer]:
        stack, command = launch.record.stack, calls.serve(self._projects, launch)
        record = dataclasses.replace(launch.record, server={"project": self._projects.name(stack)})

        def do(listener: Listener) -> ComposeServer:
            from labctl.runtimes import docker_engine

            self.workspace.cache.mkdir(parents=True, exist_ok=True)
            self._projects.require_readable_cache()
            if os.getuid() == 0:  # the server is never root, and what it writes is then nobody's
                os.chown(launch.run_dir, NOBODY, NOBODY)
                os.chown(own_secret.path(self.workspace, stack), NOBODY, NOBODY)
            self._projects.write_override(stack, calls.service(dataclasses.replace(launch, record=record)))
            code, _, tail = processes.run_tool(command, listener, listener.progress)
            found = docker_engine.containers(self._root, stack, "triton")
            if code or not found:
                raise LabError(
                    f"the containers of {stack} cannot be started", processes.describe_exit(code), details=tail
                )
            return ComposeServer(found[0], record)

        return Action(f"the server of {stack}", do, [command], [str(self._projects.override_path(stack))])

    def stop(self, stack: str, force: bool = False) -> Action[None]:
        command = calls.down(self._projects, stack, force)

        def do(listener: Listener) -> None:
            if not self.leftovers(stack):
                return
            self._keep_log(stack)
            processes.run_tool(command, listener, listener.progress)
            self._sweep(stack)
            # A file of nobody's in a folder of ours is handed back to the caller.
            if os.getuid() == 0 and (run := self.workspace.run_dir(stack)).is_dir():
                for path in (run, *run.rglob("*")):
                    os.chown(path, 0, 0)

        return Action(f"{stack} goes, and all of its project", do, [command])

    def client(self, title: str, argv: Sequence[str], stack: str) -> Action[int]:
        project, service = (stack, "client") if stack else (REPORT, "report")
        command = calls.client(self._projects, self._name(project, service), stack, argv)
        mounted = (self.workspace.cache, self.workspace.run_dir(project), self.workspace.root / "results")

        def do(listener: Listener) -> int:
            for folder in mounted:
                folder.mkdir(parents=True, exist_ok=True)
            with self._cleaned(project, command):
                return processes.run_foreground(command, listener)

        return Action(title, do, [command])

    # -- what is there -------------------------------------------------------------------------------------------

    def find(self, stack: str) -> Record | None:
        return next((record for record in self._records(stack)), None)

    def running(self) -> list[Record]:
        return list(self._records(None))

    def _records(self, stack: str | None) -> Iterator[Record]:
        from labctl.runtimes import docker_engine

        for container in docker_engine.containers(self._root, stack, "triton"):
            if container.status in ("running", "restarting", "paused"):  # one that only was created is begun anew
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    yield Record.from_json(container.labels[docker_engine.RECORD])

    def ended(self, stack: str) -> str:
        from labctl.runtimes import docker_engine

        with contextlib.suppress(LabError):
            for container in docker_engine.containers(self._root, stack, "triton"):
                return docker_engine.how_ended(container.attrs) or ""
        return ""

    def logs(self, stack: str, follow: bool = False) -> Iterator[str]:
        from labctl.runtimes import docker_engine

        found = docker_engine.containers(self._root, stack, "triton")
        if found:
            with docker_engine.speaking("reading the log"):
                if follow:
                    yield from _lines(found[0].logs(stream=True, follow=True))
                else:
                    yield from found[0].logs().decode(errors="replace").splitlines()
            return
        path = self.workspace.log_file(stack)
        if not path.is_file():
            raise LabError(f"there is no log of '{stack}'", "it has no container", f"labctl up {stack}")
        yield from path.read_text(encoding="utf-8", errors="replace").splitlines()

    def _keep_log(self, stack: str) -> None:
        """The server's last words outlive its container."""
        from labctl.runtimes import docker_engine

        with contextlib.suppress(LabError, *docker_engine.engine_errors()):
            for container in docker_engine.containers(self._root, stack, "triton"):
                atomic_write(self.workspace.log_file(stack), container.logs(tail=KEPT_LOG_LINES), mode=0o600)

    def _sweep(self, stack: str) -> None:
        """Remove what still bears our label, whatever Compose thought of it."""
        from labctl.runtimes import docker_engine

        for find in (docker_engine.containers, docker_engine.networks, docker_engine.volumes):
            with contextlib.suppress(LabError):
                docker_engine.discard(find(self._root, stack))

    def leftovers(self, stack: str) -> list[str]:
        from labctl.runtimes import docker_engine

        root = self._root
        return [
            *(f"container {c.name}" for c in docker_engine.containers(root, stack)),
            *(f"network {n.name}{docker_engine.users(n)}" for n in docker_engine.networks(root, stack)),
            *(f"volume {v.name}" for v in docker_engine.volumes(root, stack)),
        ]

    def stacks(self) -> set[str]:
        from labctl.runtimes import docker_engine

        things = (*docker_engine.containers(self._root), *docker_engine.networks(self._root))
        return {docker_engine.labels(thing)[docker_engine.STACK] for thing in things}


def _there(image: str) -> bool:
    """Whether an image is here, as far as an engine can be asked."""
    with contextlib.suppress(LabError):
        return images.exists(image)
    return False


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines out of the pieces of a stream."""
    pending = b""
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in complete)
    if pending:
        yield pending.decode(errors="replace")
