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

from labctl.engines.protocol import Builder
from labctl.errors import LabError
from labctl.listener import Listener
from labctl.runtimes import calls, images, processes
from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.base import Endpoints, Launch, Record
from labctl.runtimes.calls import BUILDER, REPORT, Call
from labctl.runtimes.compose_projects import NOBODY, Projects
from labctl.runtimes.compose_server import ComposeServer
from labctl.runtimes.compose_shown import ComposeShown
from labctl.runtimes.hub_token import hub_token, pipe
from labctl.runtimes.tools import tool_failed
from labctl.workspace import Workspace, atomic_write, replace_dir

KEPT_LOG_LINES = 20_000


class ComposeRuntime(ComposeShown):
    """Runs the stacks of one checkout in containers."""

    name = "compose"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._root = str(workspace.root)
        self._projects = Projects(workspace)
        self._server_image = ""  # known once it is prepared

    # -- before a start ------------------------------------------------------------------------------------------

    def check(self, profile: str) -> None:
        from labctl.runtimes import docker_engine

        docker_engine.engine()
        docker_engine.require_compose()
        if profile == "gpu":
            docker_engine.require_gpu()

    def prepare(self, profile: str, listener: Listener, image: str = "") -> None:
        self.check(profile)
        self._projects.require_readable_cache()
        self._server_image = images.server_image(self.workspace, profile, image)
        if image and not images.exists(image):  # also its digest is wanted, which a build alone would not keep
            listener.step(f"image {image} (many gigabytes)")
            self._run_docker(calls.pull(image), listener, f"image {image} cannot be pulled")
            listener.done("pulled")
        for name, call in calls.builds(self.workspace, profile, image).items():
            if images.exists(name):
                continue
            listener.step(f"image {name} (the first build takes minutes)")
            code, _, tail = self._call(call, listener, merged=True)  # Compose 2.26 tells of a build on stdout
            if code or not images.exists(name):
                raise LabError(
                    f"image {name} cannot be built", processes.describe_exit(code),
                    "the last lines show why; behind a proxy set LABS_CA_BUNDLE, without a package index LABS_WHEELS",
                    details=tail,
                )  # fmt: skip
            listener.done("built")

    def _call(
        self, call: Call, listener: Listener, override: Path | None = None, merged: bool = False
    ) -> tuple[int, str, list[str]]:
        return self._projects.run(call.stack, call.command, listener, call.env, call.profile, override, merged=merged)

    def _run_docker(self, argv: Sequence[str], listener: Listener, failed: str) -> str:
        listener.command(argv)
        code, out, tail = processes.run_tool(argv, listener.progress, env=dict(os.environ))
        if code:
            raise LabError(failed, processes.describe_exit(code), "the last lines show why", details=tail)
        return out

    # -- paths ---------------------------------------------------------------------------------------------------

    def server_path(self, path: Path) -> str:
        return self._projects.inside(path, server=True)

    def client_path(self, path: Path) -> str:
        return self._projects.inside(path, server=False)

    # -- the serving environment ---------------------------------------------------------------------------------

    def tool(self, argv: Sequence[str], listener: Listener) -> str:
        image = images.server_image(self.workspace, calls.TOOLS)
        secrets = {}
        with contextlib.ExitStack() as cleaning:
            name = cleaning.enter_context(self._one_shot(BUILDER, "engine-builder"))
            if token := hub_token():
                secret = self.workspace.stack_dir(BUILDER) / f"hub-token-{os.getpid()}"
                secrets["LABS_HUB_TOKEN_FILE"] = str(cleaning.enter_context(pipe(secret, token)))
            call = calls.one_shot(name, image, [self._argument(text) for text in argv])
            code, out, tail = self._call(dataclasses.replace(call, env={**call.env, **secrets}), listener)
        if code:
            raise tool_failed(argv, processes.describe_exit(code), tail)
        return out

    @contextlib.contextmanager
    def _one_shot(self, project: str, service: str) -> Iterator[str]:
        """The name of a container that is gone at the end of the block, however that comes about."""
        from labctl.runtimes import docker_engine

        name = f"{self._projects.name(project)}-{service}-{os.getpid()}"
        try:
            yield name
        finally:
            docker_engine.remove(name)
            if project in (BUILDER, REPORT):  # Compose makes a network also for those who have no use of it
                docker_engine.discard(docker_engine.networks(self._root, project))

    def _argument(self, text: str) -> str:
        path = Path(text)
        return self._projects.inside(path, server=False) if path.is_absolute() and path.exists() else text

    def builder(self, image: str, gpus: int, listener: Listener) -> Builder:
        from labctl.runtimes.image_builder import ImageBuilder

        server = images.server_image(self.workspace, "gpu", image)

        def run(argv: Sequence[str]) -> None:
            with self._one_shot(BUILDER, "engine-builder") as name:
                code, _, tail = self._call(calls.one_shot(name, server, list(self._seen(argv)), "gpu", gpus), listener)
            if code:
                raise tool_failed(argv, processes.describe_exit(code), tail)

        return ImageBuilder(image, run)

    def copy_out(self, image: str, path: str, target: Path, listener: Listener) -> None:
        server = images.server_image(self.workspace, "gpu", image)
        name = f"{self._projects.name('templates')}-{os.getpid()}"
        with replace_dir(target) as fresh:
            *commands, remove = calls.copy_out(server, name, path, fresh)
            try:
                for argv in commands:
                    self._run_docker(argv, listener, f"{path} cannot be copied out of {image}")
            finally:
                self._run_docker(remove, listener, f"container {name} cannot be removed")

    # -- the server ----------------------------------------------------------------------------------------------

    def start(self, launch: Launch, listener: Listener) -> ComposeServer:
        from labctl.runtimes import docker_engine

        record = launch.record
        record = dataclasses.replace(record, server={"project": self._projects.name(record.stack)})
        if os.getuid() == 0:  # the server is never root, and what it writes is then nobody's
            os.chown(launch.run_dir, NOBODY, NOBODY)
        launch = dataclasses.replace(launch, record=record)
        override = self._projects.override(record.stack, calls.service(launch))
        code, _, tail = self._call(calls.serve(launch, self._server_image), listener, override)
        found = docker_engine.containers(self._root, record.stack, "triton")
        if code or not found:
            raise LabError(
                f"the containers of {record.stack} cannot be started", processes.describe_exit(code), details=tail
            )
        return ComposeServer(found[0], record)

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

    def stop(self, stack: str, listener: Listener, force: bool = False) -> None:
        if not self.leftovers(stack):
            return
        self._keep_log(stack)
        self._projects.run(stack, calls.down(force), listener, self._projects.environment(stack), files=False)
        self._sweep(stack)
        # A file of nobody's in a folder of ours is handed back to the caller.
        if os.getuid() == 0 and (run := self.workspace.run_dir(stack)).is_dir():
            for path in (run, *run.rglob("*")):
                os.chown(path, 0, 0)

    def _keep_log(self, stack: str) -> None:
        """The server's last words outlive its container."""
        from labctl.runtimes import docker_engine

        with contextlib.suppress(LabError, *docker_engine.engine_errors()):
            for container in docker_engine.containers(self._root, stack, "triton"):
                atomic_write(self.workspace.log_file(stack), container.logs(tail=KEPT_LOG_LINES))

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

    # -- clients -------------------------------------------------------------------------------------------------

    def client_endpoints(self, record: Record) -> Endpoints:
        return Endpoints(f"triton:{HTTP}", f"triton:{GRPC}", f"triton:{METRICS}")

    def run_client(self, argv: Sequence[str], record: Record | None, out: Path, listener: Listener) -> int:
        stack, service = (record.stack, "client") if record else (REPORT, "report")
        env = self._projects.environment(stack) | {"LABS_CLIENT_IMAGE": images.client_image(self.workspace)}
        for folder in (self.workspace.cache, self.workspace.run_dir(stack), self.workspace.root / "results"):
            folder.mkdir(parents=True, exist_ok=True)
        terminal = [] if os.isatty(0) and os.isatty(1) else ["-T"]
        with self._one_shot(stack, service) as name:
            command = self._projects.argv(stack, calls.client(name, service, terminal, argv))
            listener.command(command)
            return processes.run_foreground(command, env={**os.environ, **env}, cwd=self.workspace.root)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines out of the pieces of a stream."""
    pending = b""
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in complete)
    if pending:
        yield pending.decode(errors="replace")
