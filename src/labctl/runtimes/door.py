"""The OpenAI-compatible front (``labdoor``): a program of its own beside a stack, or a container of its project.

On loopback it asks for nothing. Where other machines reach it, an Envoy of its own stands before it
(``labctl.runtimes.envoy.door``), and asks for the stack's token: a file that only its user can read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import ssl
import stat
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from labctl.listener import Listener
from labctl.runtimes import docker_engine, images, processes
from labctl.runtimes.compose_commands import NOBODY, Projects, compose_up, door_arguments, door_inside
from labctl.runtimes.leftovers import DOOR, STACK, marks, our_processes
from labctl.runtimes.local_server import envoy_binary
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit import nofollow
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.tls import CertificatePair
from labkit.waiting import attempts

PACKAGES = ("openai", "starlette", "uvicorn", "uvloop", "jinja2")
PATIENCE_S, LOOK_S = 60.0, 0.1
SERVICE, SECRET = "openai", "/run/secrets/openai"  # compose.yaml's
FAILED = "the OpenAI API did not come up; the stack itself is up"


def url(port: int, tls: CertificatePair | None = None) -> str:
    """The base URL that a client of OpenAI's on this machine is given."""
    return f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"


def command(
    record: Record, port: int, announce: str = "", token: Path | None = None, tls: CertificatePair | None = None
) -> Command:
    """The program in front of a running stack. Raises LabError: it cannot run in this environment.

    Args:
        token: the file with the token that clients need; with it every address is listened on.
        tls: with it TLS alone is spoken.
    """
    if token:
        envoy_binary()
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise LabError(
            "the OpenAI API cannot be served here",
            f"not installed: {', '.join(missing)}",
            "make setup (or: pip install -e '.[openai]')",
            code="openai-libraries-missing",
        )
    arguments = door_arguments(record, record.endpoints.grpc, record.tokenizer_dir, port, str(token or ""))
    if tls:
        arguments += _tls(tls.certificate, tls.key)
    if announce:
        arguments += ["--announce", announce]
    return Command([sys.executable, *arguments])


def _tls(certificate: Path | str, key: Path | str) -> list[str]:
    return ["--tls-cert", str(certificate), "--tls-key", str(key)]


def start_door_server(
    workspace: Workspace, record: Record, port: int, listener: Listener, tls: CertificatePair | None = None
) -> str:
    """Start it so that it goes with the stack: a process, or a container of the stack's project; its base URL.

    Raises:
        LabError: as of :func:`command`; or it does not come up.
    """
    address = url(port, tls)
    folder = workspace.folder(record.stack)
    listener.step("the OpenAI API")
    if record.runtime == "compose":
        _start_container(door_container(workspace, record, port, tls), workspace, record, listener)
    else:
        program = command(record, port, token=folder.token if record.exposed else None, tls=tls)
        _start(program, workspace, record, address, listener, outlive=record.owner is None)
    if not listener.dry:
        atomic_write(folder.door_url, address)
    listener.done(address)
    return address


def door_url(workspace: Workspace, record: Record) -> str:
    """The base URL of the door that goes with a stack; "" where there is none, or it has ended."""
    with contextlib.suppress(OSError, ValueError, LabError):
        address = nofollow.read_text(workspace.folder(record.stack).door_url)
        if record.runtime == "compose":
            containers = docker_engine.containers(str(workspace.root), record.stack, SERVICE)
            lives = bool(docker_engine.running_containers(containers))
        else:
            lives = any(env[STACK] == record.stack for _, env in our_processes(workspace.root, (DOOR,)))
        return address if lives else ""
    return ""


def door_container(workspace: Workspace, record: Record, port: int, tls: CertificatePair | None) -> Command:
    """What starts the container in the stack's project. It speaks to the server, or to the balancer before several.

    Raises LabError: the container's user cannot read the certificate or its key.
    """
    projects = Projects(workspace)
    arguments = door_inside(projects, record)
    added = {"STACK_OPENAI_BIND": record.bind, "STACK_OPENAI_PORT": str(port)}
    if tls:
        _require_readable_inside(tls)
        arguments += _tls(f"{SECRET}_cert", f"{SECRET}_key")
        added["STACK_OPENAI_SCHEME"] = "https"
        added["STACK_OPENAI_CERT_FILE"] = str(tls.certificate.absolute())
        added["STACK_OPENAI_KEY_FILE"] = str(tls.key.absolute())
    added["STACK_OPENAI_ARGS"] = shlex.join(arguments)
    image = images.client_image(workspace)
    shown = f"{projects.name(record.stack)}-{SERVICE}-1: {image}, on {record.bind}:{port}"
    # Started without its dependencies, its configuration differs for Compose, and `up -d` would make it again. But a
    # first server that was scaled away must not start again.
    first = record.servers[0].number == 1
    command = compose_up(projects, record, [SERVICE], shown, wait=True, dependencies=first)
    return replace(command, files=partial(projects.add, record.stack, added, SERVICE))


def _require_readable_inside(tls: CertificatePair) -> None:
    """Root's containers run as nobody, and get the files as they are."""
    for path in (tls.certificate, tls.key):
        status = path.stat()
        by_owner = status.st_uid == NOBODY and status.st_mode & stat.S_IRUSR
        by_group = status.st_gid == NOBODY and status.st_mode & stat.S_IRGRP
        by_others = status.st_mode & stat.S_IROTH
        if os.getuid() == 0 and not (by_owner or by_group or by_others):
            raise LabError(
                f"the container of the OpenAI API cannot read {path}",
                f"it runs as user {NOBODY}",
                f"chgrp {NOBODY} {path} && chmod g+r {path}",
                code="openai-file-unreadable",
            )


def _start_container(command: Command, workspace: Workspace, record: Record, listener: Listener) -> None:
    """Start it, and wait until Compose finds it healthy."""
    try:
        processes.run_to_end(command, listener, FAILED, f"labctl openai {record.stack}", code="openai-not-started")
    except LabError as error:
        with docker_engine.engine_failures("looking for the container of the OpenAI API"):
            containers = docker_engine.containers(str(workspace.root), record.stack, SERVICE)
            for container in containers:
                error.details += tuple(_tail(container.logs().decode(errors="replace")))
            docker_engine.discard(containers)
        raise


def _start(
    program: Command, workspace: Workspace, record: Record, address: str, listener: Listener, outlive: bool
) -> None:
    """Start it, and wait until it answers."""
    log = workspace.folder(record.stack).path / "openai.log"
    listener.command(program.argv)
    if listener.dry:
        return
    env = {**os.environ, **marks(workspace.root, record.stack)}
    process = processes.spawn(program.argv, env, log, workspace.root, outlive)
    for _ in attempts(PATIENCE_S, LOOK_S):
        if _answers(address):
            return
        if process.poll() is not None:
            break
    how = "no answer" if process.poll() is None else processes.describe_exit(process.returncode)
    process.kill()
    details = _tail(nofollow.read_text(log))
    raise LabError(FAILED, how, f"labctl openai {record.stack}", details=details, code="openai-not-started")


def _tail(text: str) -> Sequence[str]:
    return text.splitlines()[-5:]


def _answers(address: str) -> bool:
    """Whether the API at that base URL answers. Its certificate has another name than loopback's address."""
    any_certificate = ssl.create_default_context()
    any_certificate.check_hostname, any_certificate.verify_mode = False, ssl.CERT_NONE
    health = f"{address.removesuffix('/v1')}/health"
    try:
        with urllib.request.urlopen(health, timeout=2, context=any_certificate) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
