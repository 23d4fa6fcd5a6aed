"""The compose runtime: a stack is a Compose project of its own, described by ``compose.yaml`` and found by labels.

``docker compose`` is called for what changes a project (docker_cli.py: build, up, run, down); the engine is asked for
what there is (docker_engine.py), and for a container of an image alone. Compose's exit status alone is never believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from labbuild import release
from labctl.listener import Listener
from labctl.plan import Plan
from labctl.runtimes import balancer, compose_project, docker_engine, images
from labctl.runtimes.base import (
    REMOVED,
    UNLOADED,
    Exited,
    Part,
    State,
    Unloaded,
    too_late,
    wait_until_stopped,
    why_it_ended,
)
from labctl.runtimes.compose_project import BUILDER, ENVOY, NOBODY, REPORT, Projects, service
from labctl.runtimes.docker_cli import DockerCall
from labctl.runtimes.processes import as_they_come
from labctl.runtimes.record import CLIENT, Record
from labctl.workspace import Workspace, key_lock
from labkit.disk import atomic_write, replace_dir
from labkit.errors import LabError
from labkit.evidence.steplog import run_folders

KEPT_LINES = 20_000  # of a log, when its container goes
SILENT_S = 3.0  # that an engine may stay silent while a start waits for its servers
# Its metadata says it; importing the package needs a GPU's driver.
TRTLLM_VERSION = "from importlib.metadata import version; print(version('tensorrt_llm'))"
ASKED_S = 300.0  # until an image of many gigabytes has said its version


class ComposeRuntime:
    """Runs the stacks of one checkout in containers."""

    name = "compose"

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._root = str(workspace.root)
        self._projects = Projects(workspace)

    def check(self, profile: str) -> None:
        docker_engine.require_docker()
        if profile == "gpu":
            docker_engine.require_gpu()
        self._projects.require_usable_paths()

    def prepare(self, listener: Listener, profile: str, plan: Plan | None = None) -> None:
        image, packages = (plan.image, plan.served.packages) if plan else (None, None)
        images.build_missing_images(listener, compose_project.builds(self._projects, profile, image, packages), image)
        if plan and image and plan.fetched and not plan.fetched.is_dir():
            listener.step(f"templates of TensorRT-LLM {release.RELEASE}")
            with key_lock(plan.fetched):
                self._copy_templates(listener, image, plan.fetched)
            listener.done("copied out of the image")

    def _copy_templates(self, listener: Listener, image: str, target: Path) -> None:
        """Copy upstream's templates out of the image that serves them. A note says so if it is of another release."""
        server = images.server_image(self.workspace, "gpu", image)
        with replace_dir(target) as fresh, docker_engine.engine_failures(f"copying templates out of {image}"):
            asking = docker_engine.ended_container(server, ["-c", TRTLLM_VERSION], ASKED_S, entrypoint="python3")
            with asking as (container, code):
                found = "" if code else container.logs(stderr=False).decode(errors="replace").strip()
                docker_engine.copy_folder(container, release.TEMPLATES, fresh)
        if found != release.PACKAGE:
            package = f"TensorRT-LLM {found}" if found else "a TensorRT-LLM of an unknown version"
            table = f"labctl's table is that of {release.PACKAGE}: settings may be refused or ignored"
            listener.note(f"{image} has {package}, and {table}")

    # -- a container of one command: weights, exports, engines, a lab's client ----------------------------------------

    def tool(self, listener: Listener, argv: Sequence[str]) -> str:
        image = images.server_image(self.workspace, compose_project.TOOLS)
        secret, token = self.workspace.folder(BUILDER).hub_token(), hub_token()
        with pipe(secret, token) if token else contextlib.nullcontext() as token_file:
            call = compose_project.one_shot(self._projects, self._builder, image, argv, token=token_file)
            return self._one_shot(call, argv, listener)

    def in_image(self, listener: Listener, argv: Sequence[str], image: str, gpu: str | None) -> None:
        """Run a command in the image that :meth:`prepare` made of ``image``, on ``gpu``, else on the first one."""
        server = images.server_image(self.workspace, "gpu", image)
        call = compose_project.one_shot(self._projects, self._builder, server, argv, "gpu", gpu)
        self._one_shot(call, argv, listener)

    def _one_shot(self, call: DockerCall, argv: Sequence[str], listener: Listener) -> str:
        with self._around(BUILDER, self._builder, [self.workspace.cache]):
            return call.run_step(listener, argv)

    @property
    def _builder(self) -> str:
        return self._name(BUILDER, "engine-builder")

    def _name(self, project: str, service: str) -> str:
        """The name of a container that only this process makes."""
        return f"{self._projects.name(project)}-{service}-{os.getpid()}"

    @contextlib.contextmanager
    def _around(self, project: str, name: str, mounted: Sequence[Path]) -> Iterator[None]:
        """What the container of that name mounts is there, and the container is gone at the end of the block."""
        for folder in mounted:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            yield
        finally:
            docker_engine.remove_container(name)
            if project in (BUILDER, REPORT):  # Compose makes a network for a project that uses none, too
                docker_engine.discard(docker_engine.networks(self._projects.root, project))

    def client(self, listener: Listener, argv: Sequence[str] | None, record: Record | None) -> int:
        workspace, stack = self.workspace, record.stack if record else None
        project, service = (stack, "client") if stack else (REPORT, "report")
        name, terminal = self._name(project, service), os.isatty(0) and os.isatty(1)
        words = ("bash",) if argv is None else ("python", *argv)
        call = compose_project.client(self._projects, name, stack, words, terminal)
        mounted = (workspace.cache, workspace.folder(project).run_dir(), workspace.root / "results")
        with self._around(project, name, mounted):
            return call.run_foreground(listener, terminal)

    # -- servers ---------------------------------------------------------------------------------------------------

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> Exited:
        stack = record.stack
        self.write_files(plan, record, only)
        failed = f"the containers of {stack} cannot be started"
        starting = {server.number: service(server.number) for server in record.starting(only)}
        fronts = [ENVOY] if record.balance and not only else []
        names = [*starting.values(), *fronts]
        up = compose_project.compose_up(self._projects, record, names, remove_orphans=not only)
        up.run_to_end(listener, failed, code="containers-not-started")
        if not (containers := docker_engine.containers(self._root, stack)):
            raise LabError(failed, "docker compose made none", code="containers-not-started")
        watched = [("its balancer: ", container) for container in docker_engine.of_service(containers, ENVOY)]
        for container in docker_engine.of_service(containers, "triton"):
            if (number := docker_engine.replica(container)) in starting:
                watched.append((f"replica {number}: " if record.balance else "", container))
        return _watch(watched)

    def write_files(self, plan: Plan, record: Record, only: Collection[int] = ()) -> None:
        """Write what Compose needs of a stack (compose.env, compose.json), for us and for a person."""
        stack, folder = record.stack, self.workspace.folder(record.stack)
        for mounted in (self.workspace.cache, self.workspace.root / "results", folder.run_dir()):
            mounted.mkdir(parents=True, exist_ok=True)
        self._projects.require_usable_paths()
        if not folder.secret.exists():
            folder.make_secret()
        if os.getuid() == 0:  # the server is never root, and what it writes is then nobody's
            for path in (*run_folders(folder.run_dir()), folder.secret):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        if record.balance:
            balancer.write_container_files(self.workspace, record)
        values = self._projects.read(stack) if only else compose_project.values(self._projects, plan, record)
        services = compose_project.services(self._projects, plan, record)
        self._projects.write(record, values, services)

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int | None = None) -> None:
        if number is not None:
            return self._stop_one(listener, stack, force, number)
        if not self.leftovers(stack):
            return None
        containers = docker_engine.containers(self._root, stack)
        if not force:
            self._ask_to_stop(docker_engine.of_service(containers, "triton"), listener)
        with contextlib.suppress(*docker_engine.engine_errors()):
            if logging := _logging(containers):  # the last words of a stack outlive its containers
                words = b"".join(container.logs(tail=KEPT_LINES) for container in logging)
                atomic_write(self.workspace.folder(stack).log_file(), words, mode=0o600)
        compose_project.compose_down(self._projects, stack, force).run_tool(listener, listener.progress)
        # What still bears our label, whatever Compose thought of it.
        for find in (docker_engine.containers, docker_engine.networks, docker_engine.volumes):
            with contextlib.suppress(LabError):
                docker_engine.discard(find(self._root, stack))
        shutil.rmtree(self.workspace.folder(stack).front, ignore_errors=True)
        # A file of nobody's in a folder of ours is handed back to the caller.
        if os.getuid() == 0:
            for folder, names, files in os.walk(self.workspace.folder(stack).run_dir()):
                for name in (".", *names, *files):
                    os.chown(Path(folder, name), 0, 0, follow_symlinks=False)
        return None

    def _stop_one(self, listener: Listener, stack: str, force: bool, number: int) -> None:
        with docker_engine.engine_failures(f"stopping replica {number}"):
            servers = docker_engine.containers(self._root, stack, "triton")
            containers = [container for container in servers if docker_engine.replica(container) == number]
            if not force:
                self._ask_to_stop(containers, listener)
            docker_engine.discard(containers)
        self._projects.forget(stack, service(number))

    def _ask_to_stop(self, containers: Sequence[Any], listener: Listener) -> None:
        """With the grace that they were started with. Compose would wait while a client keeps a stream open."""
        with contextlib.suppress(*docker_engine.engine_errors()):
            running = docker_engine.running_containers(containers)
            for container in running:
                container.kill("SIGTERM")
            graces = (container.attrs["Config"].get("StopTimeout") or 0 for container in running)
            grace = float(max(graces, default=0))

            def living() -> list[Unloaded]:
                return [functools.partial(_unloaded, left) for left in docker_engine.running_containers(running)]

            if not wait_until_stopped(living, grace):
                listener.note(too_late(grace))
            for container in docker_engine.running_containers(running):
                container.kill()

    def state(self, record: Record) -> State:
        containers = docker_engine.containers(self._root, record.stack)
        servers = {docker_engine.replica(found): found for found in docker_engine.of_service(containers, "triton")}
        # One that was created and never started is not up.
        alive = frozenset(number for number, found in servers.items() if found.status in ("running", "paused"))
        ended = dict[int, str]()
        for number in (server.number for server in record.servers if server.number not in alive):
            how = docker_engine.how_ended(servers[number].attrs) if number in servers else REMOVED
            if how:
                part = number if record.balance else None
                ended[number] = why_it_ended(how, self._lines_of(containers, record.stack, part))
        fronts = docker_engine.of_service(containers, ENVOY)
        front = docker_engine.how_ended(fronts[0].attrs) if fronts else REMOVED
        # A person may have changed the ports in compose.env: they are where the engine publishes them.
        for found in fronts if record.balance else (servers[number] for number in alive):
            endpoints = docker_engine.published(found, record.endpoints)
            if record.balance == CLIENT:
                endpoints = dataclasses.replace(endpoints, grpc=record.endpoints.grpc)
            record = dataclasses.replace(record, endpoints=endpoints, servers=record.servers if record.balance else ())
        return State(record, alive, ended, f"its balancer: {front}" if record.balance and front else None)

    def stacks(self) -> set[str]:
        """Return the names of all that the engine has something of: stacks, and tools of a labctl that was killed."""
        things = (*docker_engine.containers(self._root), *docker_engine.networks(self._root))
        names = (docker_engine.labels(thing).get(docker_engine.STACK) for thing in things)
        return set(filter(None, names))

    def leftovers(self, stack: str) -> list[str]:
        root = self._root
        return [
            *(f"container {c.name}" for c in docker_engine.containers(root, stack)),
            *(f"network {n.name}{docker_engine.containers_on_network(n)}" for n in docker_engine.networks(root, stack)),
            *(f"volume {v.name}" for v in docker_engine.volumes(root, stack)),
        ]

    def logs(self, stack: str, follow: bool = False, part: Part | None = None) -> Iterator[str]:
        containers = docker_engine.containers(self._root, stack)
        if follow and (found := _logging(containers, part)):
            with docker_engine.engine_failures("reading the log"):
                yield from as_they_come([_lines(container.logs(stream=True, follow=True)) for container in found])
        else:
            yield from self._lines_of(containers, stack, part)

    def _lines_of(self, containers: Sequence[Any], stack: str, part: Part | None) -> Iterator[str]:
        """What these containers have written; without one, what was kept when they went."""
        path = self.workspace.folder(stack).log_file(part if isinstance(part, int) else None)
        if found := _logging(containers, part):
            with docker_engine.engine_failures("reading the log"):
                for container in found:
                    yield from container.logs().decode(errors="replace").splitlines()
        elif path.is_file():
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
        else:
            raise LabError(
                f"there is no log of '{stack}'", "it has no container", f"labctl up {stack}", code="log-missing"
            )


def _watch(watched: Sequence[tuple[str, Any]]) -> Exited:
    """Return what says how the first of these containers ended, after its name in errors."""
    silent_since: float | None = None

    def exited() -> str | None:
        """Raises LabError when the engine itself stays silent."""
        import docker.errors

        nonlocal silent_since
        try:
            for name, container in watched:
                container.reload()
                if how := docker_engine.how_ended(container.attrs):
                    return name + how
        except docker.errors.NotFound:
            return REMOVED
        except docker_engine.engine_errors() as error:
            silent_since = silent_since or time.monotonic()
            if time.monotonic() - silent_since > SILENT_S:
                raise LabError(
                    "the Docker engine stopped answering", "", "start it, then labctl down", code="docker-silent"
                ) from error
        else:
            silent_since = None
        return None

    return exited


def _logging(containers: Sequence[Any], part: Part | None = None) -> list[Any]:
    """The containers with a log: what stands before the servers, then the servers, whose last lines matter most."""
    fronts = [] if isinstance(part, int) else docker_engine.of_service(containers, ENVOY)
    servers = [] if part == "balancer" else docker_engine.of_service(containers, "triton")
    chosen = [server for server in servers if part is None or docker_engine.replica(server) == part]
    return [*fronts, *sorted(chosen, key=docker_engine.replica)]


def _unloaded(container: Any) -> bool:
    return UNLOADED.encode() in container.logs(tail=20)


def _lines(chunks: Iterator[bytes]) -> Iterator[str]:
    """Whole lines out of the pieces of a stream."""
    pending = b""
    for chunk in chunks:
        *complete, pending = (pending + chunk).split(b"\n")
        yield from (line.decode(errors="replace").rstrip("\r") for line in complete)
    if pending:
        yield pending.decode(errors="replace")


def hub_token() -> str | None:
    """Return the person's token from wherever Hugging Face's own tools look for it."""
    from huggingface_hub import get_token

    token: str | None = get_token()
    return token


@contextlib.contextmanager
def pipe(path: Path, text: str) -> Iterator[Path]:
    """A named pipe at ``path`` that gives ``text`` to its first reader; gone at the end of the block."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path, 0o600)

    def write() -> None:
        with contextlib.suppress(BrokenPipeError):  # its reader has gone
            path.write_text(text)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield path
    finally:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # frees a writer whose reader never came
        writer.join()
        os.close(end)
        path.unlink(missing_ok=True)
