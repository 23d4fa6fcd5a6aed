"""The compose runtime: a stack is a Compose project of its own, described by ``compose.yaml`` and found by labels.

``docker compose`` is called for what changes a project (docker_cli.py: build, up, run, down); the engine is asked for
what there is (docker_engine.py), and for a container of an image alone. Compose's exit status alone is never believed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import shutil
import threading
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from labctl.listener import Listener
from labctl.plan import Plan
from labctl.runtimes import compose_project, docker_engine, images
from labctl.runtimes.base import FRONT, REMOVED, UNLOADED, Unloaded, too_late, wait_until_stopped, why_it_ended
from labctl.runtimes.compose_project import BUILDER, NOBODY, REPORT, Projects, service
from labctl.runtimes.docker_cli import DockerCall
from labctl.runtimes.docker_engine import ComposeServer
from labctl.runtimes.envoy import admin, config
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.envoy.container import CONFIG, SERVERS, servers_json
from labctl.runtimes.processes import as_they_come
from labctl.runtimes.record import CLIENT, Endpoints, Record, merge_records
from labctl.triton.arguments import receiver
from labctl.unfinished import replace_dir
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence.steplog import run_folders

KEPT_LINES = 20_000  # of a log, when its container goes
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
        self._projects.require_readable_cache()

    def server_path(self, path: Path) -> str:
        return self._projects.inside(path, server=True)

    def client_path(self, path: Path) -> str:
        return self._projects.inside(path, server=False)

    def client_endpoints(self, record: Record) -> Endpoints:
        return compose_project.network_endpoints(record)

    def minutes(self, profile: str, image: str, packages: str) -> list[int]:
        return images.build_minutes(compose_project.builds(self._projects, profile, image, packages), image)

    def prepare(self, listener: Listener, profile: str, image: str = "", packages: str = "") -> None:
        images.build_missing_images(listener, compose_project.builds(self._projects, profile, image, packages), image)

    # -- a container of one command: weights, exports, engines, a lab's client, a copy out of an image -----------------

    def tool(self, listener: Listener, argv: Sequence[str]) -> str:
        image = images.server_image(self.workspace, compose_project.TOOLS)
        name, secret = self._name(BUILDER, "engine-builder"), self.workspace.folder(BUILDER).hub_token()
        token = hub_token()
        with pipe(secret, token) if token else contextlib.nullcontext() as token_file:
            words = self.inside(argv, strict=True)
            call = compose_project.one_shot(self._projects, name, image, words, token=token_file)
            return self._one_shot(name, call, argv, listener)

    def in_image(self, listener: Listener, argv: Sequence[str], image: str, gpu: str) -> None:
        server = images.server_image(self.workspace, "gpu", image)
        name = self._name(BUILDER, "engine-builder")
        call = compose_project.one_shot(self._projects, name, server, self.inside(argv), "gpu", gpu)
        self._one_shot(name, call, argv, listener)

    def _one_shot(self, name: str, call: DockerCall, argv: Sequence[str], listener: Listener) -> str:
        with self._around(BUILDER, name, [self.workspace.cache]):
            return call.run_step(listener, argv)

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

    def inside(self, argv: Sequence[str], strict: bool = False) -> list[str]:
        """A command's words, with paths as the containers see them; ``strict`` refuses one that they cannot see."""
        return [self._container_path(text, strict) for text in argv]

    def _container_path(self, text: str, strict: bool) -> str:
        path = Path(text)
        mounted = any(path.is_relative_to(folder) for folder in (self.workspace.cache, self.workspace.models))
        required = strict and path.is_absolute() and path.exists()
        return self._projects.inside(path, server=False) if mounted or required else text

    def copy_out(self, listener: Listener, image: str, path: str, target: Path, version: str) -> None:
        server = images.server_image(self.workspace, "gpu", image)
        with replace_dir(target) as fresh, docker_engine.engine_failures(f"copying {path} out of {image}"):
            asking = docker_engine.ended_container(server, ["-c", TRTLLM_VERSION], ASKED_S, entrypoint="python3")
            with asking as (container, code):
                found = "" if code else container.logs(stderr=False).decode(errors="replace").strip()
                docker_engine.copy_folder(container, path, fresh)
        if found != version:
            package = f"TensorRT-LLM {found}" if found else "a TensorRT-LLM of an unknown version"
            listener.note(
                f"{image} has {package}, and labctl's table is that of {version}: settings may be refused or ignored"
            )

    def client(self, listener: Listener, argv: Sequence[str], stack: str) -> int:
        return self._foreground(listener, ("python", *argv), stack)

    def shell(self, listener: Listener, record: Record) -> int:
        return self._foreground(listener, ("bash",), record.stack)

    def _foreground(self, listener: Listener, words: Sequence[str], stack: str) -> int:
        workspace, (project, service) = self.workspace, (stack, "client") if stack else (REPORT, "report")
        name = self._name(project, service)
        terminal = os.isatty(0) and os.isatty(1)
        call = compose_project.client(self._projects, name, stack, words, terminal)
        mounted = (workspace.cache, workspace.folder(project).run_dir(), workspace.root / "results")
        with self._around(project, name, mounted):
            return call.run_foreground(listener, terminal)

    # -- servers ---------------------------------------------------------------------------------------------------

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> ComposeServer:
        stack = record.stack
        self.write_files(plan, record, only)
        failed = f"the containers of {stack} cannot be started"
        up = compose_project.compose_up_servers(self._projects, record, only)
        up.run_to_end(listener, failed, code="containers-not-started")
        servers = docker_engine.containers(self._root, stack, "triton")
        if not servers:
            raise LabError(failed, "docker compose made none", code="containers-not-started")
        starting = {server.number for server in record.starting(only)}
        watched = []
        for container in servers:
            if (number := docker_engine.replica(container)) in starting:
                watched.append((f"replica {number}" if record.balance else "", container))
        fronts = docker_engine.containers(self._root, stack, compose_project.ENVOY)
        watched += [("its balancer", container) for container in fronts]
        return ComposeServer(watched)

    def write_files(self, plan: Plan, record: Record, only: Collection[int] = ()) -> None:
        """Write what Compose needs of a stack (compose.env, compose.json), for us and for a person."""
        stack, folder = record.stack, self.workspace.folder(record.stack)
        for mounted in (self.workspace.cache, self.workspace.root / "results", folder.run_dir()):
            mounted.mkdir(parents=True, exist_ok=True)
        self._projects.require_readable_cache()
        if not folder.secret.exists():
            folder.make_secret()
        if os.getuid() == 0:  # the server is never root, and what it writes is then nobody's
            for path in (*run_folders(folder.run_dir()), folder.secret):
                os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        if record.balance:
            self._configure(record)
        values = self._projects.read(stack) if only else compose_project.values(self._projects, plan, record)
        services = compose_project.services(self._projects, plan, record, only)
        secrets = compose_project.secrets(self._projects, record)
        self._projects.write(stack, values, services, record.profile, secrets)

    def front(self, listener: Listener, record: Record) -> None:
        self._configure(record)
        up = compose_project.compose_up(
            self._projects, record, [compose_project.ENVOY], dependencies=False, force_recreate=True
        )
        up.run_to_end(listener, f"the balancer of {record.stack} cannot be started", code="front-not-started")

    def _configure(self, record: Record) -> None:
        """Write what Envoy's container reads: its configuration, and its servers' names."""
        trace = receiver(record.settings.get("trace"))
        configuration = config.in_container(record.balance, trace)
        folder = self.workspace.folder(record.stack).front
        atomic_write(folder / CONFIG, json.dumps(configuration, indent=1))
        folder.chmod(0o755)  # Envoy may be nobody
        self.spread(record)

    def spread(self, record: Record, draining: Collection[int] = ()) -> None:
        hosts = {server.number: service(server.number) for server in record.servers}
        folder = self.workspace.folder(record.stack).front
        atomic_write(folder / SERVERS, servers_json(hosts, draining))

    def balancer_view(self, record: Record) -> dict[int, UpstreamHealth]:
        with contextlib.suppress(LabError, ValueError, KeyError, *docker_engine.engine_errors()):
            for container in docker_engine.containers(self._root, record.stack, compose_project.ENVOY):
                code, output = container.exec_run(["python3", "-m", admin.__name__, config.ADMIN])
                if code == 0:
                    return admin.read_upstreams(json.loads(output), l4=record.balance == "l4")
        return {}

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int = 0) -> None:
        if number:
            return self._stop_one(listener, stack, force, number)
        if not self.leftovers(stack):
            return None
        if not force:
            self._ask_to_stop(self._servers(stack), listener)
        with contextlib.suppress(LabError, *docker_engine.engine_errors()):
            if containers := self._logging(stack):  # the last words of a stack outlive its containers
                words = b"".join(container.logs(tail=KEPT_LINES) for container in containers)
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
            containers = self._servers(stack, number)
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

    def _servers(self, stack: str, number: int = 0) -> list[Any]:
        """The containers of all servers of a stack, or of one of them."""
        every = docker_engine.containers(self._root, stack, "triton")
        return [container for container in every if number in (0, docker_engine.replica(container))]

    def find(self, stack: str) -> Record | None:
        return next(self._records(stack), None)

    def running(self) -> list[Record]:
        return list(self._records(None))

    def _records(self, stack: str | None) -> Iterator[Record]:
        by_stack, alone = dict[str, dict[int, Record]](), dict[str, Any]()
        for container in docker_engine.containers(self._root, stack, "triton"):
            # One that was created and never started is not up.
            if container.status in ("running", "paused"):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    record = Record.from_json(container.labels[docker_engine.RECORD])
                    by_stack.setdefault(record.stack, {})[docker_engine.replica(container)] = record
                    if not record.balance:
                        alone[record.stack] = container
        for record in map(merge_records, by_stack.values()):
            yield self._as_published(record, alone.get(record.stack))

    def _as_published(self, record: Record, server: Any) -> Record:
        """The record with the ports that the engine publishes: a person may have changed them in compose.env."""
        if server:
            endpoints = docker_engine.published(server, record.endpoints)
            return dataclasses.replace(record, endpoints=endpoints, servers=())
        for front in docker_engine.containers(self._root, record.stack, compose_project.ENVOY):
            endpoints = docker_engine.published(front, record.endpoints)
            grpc = record.endpoints.grpc if record.balance == CLIENT else endpoints.grpc
            return dataclasses.replace(record, endpoints=dataclasses.replace(endpoints, grpc=grpc))
        return record

    def largest(self, stack: str) -> int:
        """Bytes of memory that the largest process of the stack's servers has. Raises LabError without an engine."""
        return max(map(docker_engine.largest_process_bytes, self._servers(stack)), default=0)

    def kill(self, stack: str) -> None:
        """End the stack's servers at once; their containers stay. Raises LabError without an engine."""
        with docker_engine.engine_failures("ending a container"):
            for container in self._servers(stack):
                container.kill()

    def death_of(self, stack: str, number: int = 0) -> str:
        with contextlib.suppress(LabError):
            servers = self._servers(stack, number)
            ends = (docker_engine.how_ended(container.attrs) for container in servers)
            ended = next(filter(None, ends), "") if servers else REMOVED
            return why_it_ended(ended, self.logs(stack, number=number))
        return ""

    def front_death(self, record: Record) -> str:
        if not record.balance:
            return ""
        fronts = docker_engine.containers(self._root, record.stack, compose_project.ENVOY)
        how = docker_engine.how_ended(fronts[0].attrs) if fronts else REMOVED
        return f"its balancer: {how}" if how else ""

    def logs(self, stack: str, follow: bool = False, number: int = 0) -> Iterator[str]:
        path = self.workspace.folder(stack).log_file(max(number, 0))
        if containers := self._logging(stack, number):
            with docker_engine.engine_failures("reading the log"):
                if follow:
                    yield from as_they_come([_lines(c.logs(stream=True, follow=True)) for c in containers])
                else:
                    for container in containers:
                        yield from container.logs().decode(errors="replace").splitlines()
        elif path.is_file():
            yield from path.read_text(encoding="utf-8", errors="replace").splitlines()
        else:
            raise LabError(
                f"there is no log of '{stack}'", "it has no container", f"labctl up {stack}", code="log-missing"
            )

    def _logging(self, stack: str, number: int = 0) -> list[Any]:
        """The containers with a log: what stands before the servers, then the servers, whose last lines matter most."""
        fronts = docker_engine.containers(self._root, stack, compose_project.ENVOY) if number < 1 else []
        servers = self._servers(stack, number) if number != FRONT else []
        return [*fronts, *sorted(servers, key=docker_engine.replica)]

    def leftovers(self, stack: str) -> list[str]:
        root = self._root
        return [
            *(f"container {c.name}" for c in docker_engine.containers(root, stack)),
            *(f"network {n.name}{docker_engine.containers_on_network(n)}" for n in docker_engine.networks(root, stack)),
            *(f"volume {v.name}" for v in docker_engine.volumes(root, stack)),
        ]

    def stacks(self) -> set[str]:
        things = (*docker_engine.containers(self._root), *docker_engine.networks(self._root))
        names = (docker_engine.labels(thing).get(docker_engine.STACK) for thing in things)
        return set(filter(None, names))


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
