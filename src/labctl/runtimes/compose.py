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
from labctl.runtimes import calls, compose_images, compose_logs, processes
from labctl.runtimes.actions import Action
from labctl.runtimes.arguments import GRPC, HTTP, METRICS
from labctl.runtimes.base import Endpoints, Launch, Record
from labctl.runtimes.compose_once import OneShots
from labctl.runtimes.compose_projects import NOBODY, Projects
from labctl.runtimes.compose_server import ComposeServer
from labctl.workspace import Workspace


class ComposeRuntime:
    """Runs the stacks of one checkout in containers."""

    name = "compose"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._root = str(workspace.root)
        self._projects = Projects(workspace)
        self._once = OneShots(self._projects)

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

    def prepare(self, profile: str, image: str = "", guarded: bool = False) -> list[Action[str]]:
        return compose_images.missing(self._projects, profile, image, guarded)

    def tool(self, title: str, argv: Sequence[str]) -> Action[str]:
        return self._once.tool(title, argv)

    def in_image(self, title: str, argv: Sequence[str], image: str, gpus: int) -> Action[None]:
        return self._once.in_image(title, argv, image, gpus)

    def copy_out(self, title: str, image: str, path: str, target: Path) -> Action[str]:
        return self._once.copy_out(title, image, path, target)

    def client(self, title: str, argv: Sequence[str], stack: str) -> Action[int]:
        return self._once.client(title, argv, stack)

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
            servers = docker_engine.containers(self._root, stack, "triton")
            if code or not servers:
                raise LabError(
                    f"the containers of {stack} cannot be started", processes.describe_exit(code), details=tail
                )
            return ComposeServer([*servers, *docker_engine.containers(self._root, stack, "guard")], record)

        return Action(f"the server of {stack}", do, [command], [str(self._projects.override_path(stack))])

    def stop(self, stack: str, force: bool = False) -> Action[None]:
        command = calls.down(self._projects, stack, force)

        def do(listener: Listener) -> None:
            if not self.leftovers(stack):
                return
            compose_logs.keep(self.workspace, stack)
            processes.run_tool(command, listener, listener.progress)
            self._sweep(stack)
            # A file of nobody's in a folder of ours is handed back to the caller.
            if os.getuid() == 0 and (run := self.workspace.run_dir(stack)).is_dir():
                for path in (run, *run.rglob("*")):
                    os.chown(path, 0, 0)

        return Action(f"{stack} goes, and all of its project", do, [command])

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

    def guard_ended(self, record: Record) -> str:
        from labctl.runtimes import docker_engine

        if not record.guarded:
            return ""
        guards = docker_engine.containers(self._root, record.stack, "guard")
        how = docker_engine.how_ended(guards[0].attrs) if guards else "its container was removed"
        return f"its guard: {how}" if how else ""

    def logs(self, stack: str, follow: bool = False) -> Iterator[str]:
        return compose_logs.lines(self.workspace, stack, follow)

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
