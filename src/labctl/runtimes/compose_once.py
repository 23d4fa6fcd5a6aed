"""Containers of one command each: weights, exports, engines, a lab's client, a copy out of an image."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from labctl.listener import Listener
from labctl.runtimes import compose_commands, docker_engine, images, processes
from labctl.runtimes.compose_commands import BUILDER, REPORT, Projects
from labctl.runtimes.processes import Action, Command
from labctl.runtimes.series import PROGRAM, Around, Series
from labctl.unfinished import replace_dir
from labctl.workspace import Workspace


class OneShots:
    """The part of the compose runtime that runs one command in a container, as actions."""

    workspace: Workspace
    _projects: Projects

    def tool(self, title: str, argv: Sequence[str]) -> Action[str]:
        image = images.server_image(self.workspace, compose_commands.TOOLS)
        arguments = [self._container_path(text, strict=True) for text in argv]
        command = compose_commands.one_shot(self._projects, self._name(BUILDER, "engine-builder"), image, arguments)

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
        name, arguments = self._name(BUILDER, "engine-builder"), [self._container_path(text) for text in argv]
        command = compose_commands.one_shot(self._projects, name, server, arguments, "gpu", gpus, devices)

        def do(listener: Listener) -> None:
            if devices:
                self._projects.write_override(BUILDER, {"engine-builder": compose_commands.gpu_reservation(devices)})
            self._one_shot(command, argv, listener)

        return Action(title, do, [command])

    def _one_shot(self, command: Command, argv: Sequence[str], listener: Listener) -> str:
        with self._around(BUILDER, command, self.workspace.cache):
            return processes.run_step(command, listener, argv)

    def _name(self, project: str, service: str) -> str:
        """Of a container that only this process makes."""
        return f"{self._projects.name(project)}-{service}-{os.getpid()}"

    @contextlib.contextmanager
    def _around(self, project: str, command: Command, *mounted: Path) -> Iterator[None]:
        """What the container mounts is there, and the container is gone at the end of the block."""
        for folder in mounted:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            docker_engine.remove(command.container.partition(":")[0])
            if project in (BUILDER, REPORT):  # Compose makes a network also for those who have no use of it
                docker_engine.discard(docker_engine.networks(self._projects.root, project))

    def _container_path(self, text: str, strict: bool = False) -> str:
        """A path as the containers see it, or any other text; ``strict`` refuses a path that they cannot see."""
        path = Path(text)
        mounted = any(path.is_relative_to(folder) for folder in (self.workspace.cache, self.workspace.models))
        there = strict and path.is_absolute() and path.exists()
        return self._projects.inside(path, server=False) if mounted or there else text

    def copy_out(self, title: str, image: str, path: str, target: Path, version: str) -> Action[str]:
        server = images.server_image(self.workspace, "gpu", image)
        name = self._name("templates", "copy")

        def do(listener: Listener) -> str:
            failed = f"{path} cannot be copied out of {image}"
            with replace_dir(target) as fresh:
                create, ask, copy, remove = compose_commands.copy_out(server, name, path, fresh)
                try:
                    processes.run_to_end(create, listener, failed)
                    code, answer, _ = processes.run_tool(ask, listener, listener.progress)
                    processes.run_to_end(copy, listener, failed)
                finally:
                    processes.run_to_end(remove, listener, f"container {name} cannot be removed")
            found = "" if code else answer.strip()
            if found != version:
                listener.note(
                    f"{image} has {f'TensorRT-LLM {found}' if found else 'a TensorRT-LLM of an unknown version'}, and "
                    f"labctl's table is that of {version}: settings may be refused or ignored"
                )
            return "copied out of the image"

        return Action(title, do, compose_commands.copy_out(server, name, path, target), [f"{target}/"])

    def client(self, title: str, argv: Sequence[str], stack: str) -> Action[int]:
        command, around = self._client(stack, argv, terminal=os.isatty(0) and os.isatty(1))

        def do(listener: Listener) -> int:
            with around():
                return processes.run_foreground(command, listener)

        return Action(title, do, [command])

    def clients(self, stack: str) -> Series:
        """A container of the service ``client`` for all of them; its stdin is their list, and no terminal."""
        return Series(f"the clients of {stack}", *self._client(stack, PROGRAM, terminal=False))

    def _client(self, stack: str, argv: Sequence[str], terminal: bool) -> tuple[Command, Around]:
        workspace, (project, service) = self.workspace, (stack, "client") if stack else (REPORT, "report")
        command = compose_commands.client(self._projects, self._name(project, service), stack, argv, terminal)
        mounted = (workspace.cache, workspace.folder(project).run_dir(), workspace.root / "results")
        return command, functools.partial(self._around, project, command, *mounted)


def hub_token() -> str:
    """The person's token from wherever Hugging Face's own tools look for it; "" if there is none."""
    from huggingface_hub import get_token

    return get_token() or ""


@contextlib.contextmanager
def pipe(path: Path, text: str) -> Iterator[Path]:
    """A named pipe at ``path`` that gives ``text`` to its first reader; gone at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)
    writer = threading.Thread(target=path.write_text, args=(text,), daemon=True)
    writer.start()
    try:
        yield path
    finally:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # frees a writer whose reader never came
        writer.join()
        os.close(end)
        path.unlink(missing_ok=True)
