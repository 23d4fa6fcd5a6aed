"""The OpenAI-compatible front (``labdoor``): a program of its own beside a stack, or a container of its project."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import urllib.request
from collections.abc import Sequence

from labctl.listener import Listener
from labctl.runtimes import docker_engine, groups, processes
from labctl.runtimes.compose_project import Projects, compose_up, door_arguments, door_inside
from labctl.runtimes.docker_cli import DockerCall
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit import disk
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.waiting import attempts

USUAL_PORT = 9000  # of Triton's own OpenAI frontend
PATIENCE_S, LOOK_S = 60.0, 0.1
SERVICE = "openai"  # compose.yaml's
FAILED = "the OpenAI API did not come up; the stack itself is up"


def url(port: int) -> str:
    """The base URL that a client of OpenAI's on this machine is given."""
    return f"http://127.0.0.1:{port}/v1"


def command(record: Record, port: int, announce: str | None = None) -> Command:
    """The program in front of a running stack."""
    arguments = door_arguments(record, record.endpoints.grpc, port)
    if announce:
        arguments += ["--announce", announce]
    return Command([sys.executable, *arguments])


def start_door_server(workspace: Workspace, record: Record, port: int, listener: Listener) -> str:
    """Start it so that it goes with the stack: a process, or a container of the stack's project; its base URL.

    Raises LabError: it does not come up. Raises Busy where another command changes the stack.
    """
    address = url(port)
    listener.step("the OpenAI API")
    with stack_lock(workspace, record.stack, "openai"):
        if record.runtime == "compose":
            _start_container(door_container(workspace, record, port), workspace, record, listener)
        else:
            _start(command(record, port), workspace, record, address, listener, outlive=record.owner is None)
        atomic_write(workspace.folder(record.stack).door_url, address)
    listener.done(address)
    return address


def door_url(workspace: Workspace, record: Record) -> str | None:
    """The base URL of the door that goes with a stack; None where there is none, or it has ended."""
    with contextlib.suppress(OSError, ValueError, LabError):
        address = disk.read_text(workspace.folder(record.stack).door_url)
        if record.runtime == "compose":
            containers = docker_engine.containers(str(workspace.root), record.stack, SERVICE)
            lives = bool(docker_engine.running_containers(containers))
        else:
            parts = groups.groups(workspace.folder(record.stack))
            lives = any(group.members() for group in parts if group.part == groups.OPENAI)
        return address if lives else None
    return None


def door_container(workspace: Workspace, record: Record, port: int) -> DockerCall:
    """Write what the container needs into the file of the stack's project; what starts it there.

    It speaks to the server, or to the balancer before several.
    """
    projects = Projects(workspace)
    added = {"STACK_OPENAI_PORT": str(port), "STACK_OPENAI_ARGS": shlex.join(door_inside(record))}
    projects.add(record.stack, added, SERVICE)
    # Started without its dependencies, its configuration differs for Compose, and `up -d` would make it again. But a
    # first server that was scaled away must not start again.
    first = record.servers[0].number == 1
    return compose_up(projects, record, [SERVICE], wait=True, dependencies=first)


def _start_container(up: DockerCall, workspace: Workspace, record: Record, listener: Listener) -> None:
    """Start it, and wait until Compose finds it healthy."""
    try:
        up.run_to_end(listener, FAILED, f"labctl openai {record.stack}", code="openai-not-started")
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
    folder = workspace.folder(record.stack)
    log = folder.path / "openai.log"
    listener.command(program.argv)
    process = groups.spawn(folder, groups.OPENAI, program.argv, os.environ, log, folder.path, outlive)
    for _ in attempts(PATIENCE_S, LOOK_S):
        if _answers(address):
            return
        if process.poll() is not None:
            break
    how = "no answer" if process.poll() is None else processes.describe_exit(process.returncode)
    process.kill()
    details = _tail(disk.read_text(log))
    raise LabError(FAILED, how, f"labctl openai {record.stack}", details=details, code="openai-not-started")


def _tail(text: str) -> Sequence[str]:
    return text.splitlines()[-5:]


def _answers(address: str) -> bool:
    """Whether the API at that base URL answers."""
    health = f"{address.removesuffix('/v1')}/health"
    try:
        with urllib.request.urlopen(health, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
