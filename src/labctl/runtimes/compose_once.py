"""Containers of one command each: weights, exports, engines, a lab's client, a copy out of an image."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from labctl.listener import Listener
from labctl.runtimes import calls, compose_images, docker_engine, images, processes
from labctl.runtimes.actions import Action, Command
from labctl.runtimes.calls import BUILDER, REPORT
from labctl.runtimes.clients import PROGRAM, Series
from labctl.runtimes.compose_projects import Projects
from labctl.runtimes.hub_token import hub_token, pipe
from labctl.runtimes.tools import progress_of, tool_failed
from labctl.workspace import replace_dir


class OneShots:
    """The one-shot containers of one checkout, as actions."""

    def __init__(self, projects: Projects) -> None:
        self.workspace = projects.workspace
        self._projects = projects

    def tool(self, title: str, argv: Sequence[str]) -> Action[str]:
        image = images.server_image(self.workspace, calls.TOOLS)
        arguments = [self._argument(text) for text in argv]
        command = calls.one_shot(self._projects, self._name(BUILDER, "engine-builder"), image, arguments)

        def do(listener: Listener) -> str:
            with contextlib.ExitStack() as cleaning:
                env = dict(command.env)
                if token := hub_token():
                    secret = self.workspace.folder(BUILDER).hub_token()
                    env["LABS_HUB_TOKEN_FILE"] = str(cleaning.enter_context(pipe(secret, token)))
                return self._one_shot(dataclasses.replace(command, env=env), argv, listener)

        return Action(title, do, [command])

    def in_image(
        self, title: str, argv: Sequence[str], image: str, gpus: int, devices: Sequence[str] = ()
    ) -> Action[None]:
        server = images.server_image(self.workspace, "gpu", image)
        name, arguments = self._name(BUILDER, "engine-builder"), [self._seen(text) for text in argv]
        command = calls.one_shot(self._projects, name, server, arguments, "gpu", gpus, devices)

        def do(listener: Listener) -> None:
            if devices:
                self._projects.write_override(BUILDER, {"engine-builder": calls.reserved(devices)})
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
        try:
            yield
        finally:
            docker_engine.remove(command.container.partition(":")[0])
            if project in (BUILDER, REPORT):  # Compose makes a network also for those who have no use of it
                docker_engine.discard(docker_engine.networks(self._projects.root, project))

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
                        compose_images.run(command, listener, f"{path} cannot be copied out of {image}")
                finally:
                    compose_images.run(remove, listener, f"container {name} cannot be removed")
            return "copied out of the image"

        return Action(title, do, calls.copy_out(server, name, path, target), [f"{target}/"])

    def client(self, title: str, argv: Sequence[str], stack: str) -> Action[int]:
        project, service = (stack, "client") if stack else (REPORT, "report")
        terminal = os.isatty(0) and os.isatty(1)
        command = calls.client(self._projects, self._name(project, service), stack, argv, terminal)

        def do(listener: Listener) -> int:
            with self._mounted(project, command):
                return processes.run_foreground(command, listener)

        return Action(title, do, [command])

    def clients(self, stack: str) -> Series:
        """A container of the service ``client`` for all of them; its stdin is their list, and no terminal."""
        command = calls.client(self._projects, self._name(stack, "client"), stack, PROGRAM, terminal=False)
        return Series(f"the clients of {stack}", command, functools.partial(self._mounted, stack, command))

    @contextlib.contextmanager
    def _mounted(self, project: str, command: Command) -> Iterator[None]:
        """What the container mounts is there, and the container is gone at the end of the block."""
        for folder in (self.workspace.cache, self.workspace.folder(project).run_dir(), self.workspace.root / "results"):
            folder.mkdir(parents=True, exist_ok=True)
        with self._cleaned(project, command):
            yield
