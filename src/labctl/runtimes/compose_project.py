"""A stack's Compose project: the files that describe it, and the calls of ``docker compose`` on it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from labctl.options import LOOPBACK
from labctl.plan import Plan
from labctl.runtimes import docker_engine, images, nvidia
from labctl.runtimes.base import require_plain_path
from labctl.runtimes.docker_cli import Call, DockerCall
from labctl.runtimes.envoy.config import INNER_PORTS
from labctl.runtimes.record import CLIENT, REPLICA, Endpoints, Record, addresses
from labctl.triton.arguments import CLOSED, GRPC, HTTP, METRICS
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

if TYPE_CHECKING:
    from python_on_whales import DockerClient

ENVOY = "envoy"  # the service of what stands before the servers
BUILDER, REPORT = "builder", "report"  # projects of the containers that belong to no stack
GRACE_S = 5
ALL_SERVERS = "replicas"  # a host name that stands for every server of a stack
DOOR_PORT = 9000  # of the OpenAI API in its container
ANYWHERE = "0.0.0.0"  # where a container listens: Compose publishes it on loopback alone
TOOLS = "cpu"  # weights and exports are made in the cpu image on either profile: its Python is labctl's own
NOBODY = 65534
RECORD = "x-record"  # in compose.json, for labctl: Compose reads no key that begins so
# What a person may export for `labctl up`, as LABS_X; the stack's file has it as STACK_X.
EXPORTED = ("PROMETHEUS_IMAGE", "SHM_SIZE")
ESCAPED = {"\\": "\\\\", '"': '\\"', "$": "\\$", "\n": "\\n", "\r": "\\r"}


def builds(projects: Projects, profile: str, base: str | None, packages: str | None = None) -> dict[str, DockerCall]:
    """Every image that a profile needs, and a layer over the server's, by its name, and how it is built."""
    workspace, calls = projects.workspace, dict[str, DockerCall]()

    def build(
        service: str, image: str, profile: str = TOOLS, base: str | None = None, target: str | None = None
    ) -> None:
        name = "STACK_CLIENT_IMAGE" if service == "client" else "STACK_SERVER_IMAGE"
        values = {name: image, **images.build_environment(), **images.target(base)}
        if target:
            values["STACK_SERVER_TARGET"] = target
        arguments = images.build_arguments(base)
        calls[image] = projects.alone(
            BUILDER,
            lambda docker: docker.compose.build([service], build_args=arguments, stream_logs=True),
            values,
            profile,
        )

    build("triton", images.server_image(workspace, profile, base), profile, base)
    if profile != TOOLS:
        build("triton", images.server_image(workspace, TOOLS))
    if packages and profile == TOOLS:  # our own image for GPUs has them
        build("triton", images.server_image(workspace, TOOLS, packages=packages), target=packages)
    build("client", images.client_image(workspace))
    return calls


def one_shot(
    projects: Projects,
    name: str,
    image: str,
    arguments: Sequence[str],
    profile: str = TOOLS,
    gpu: str | None = None,
    token: Path | None = None,
) -> DockerCall:
    """A command in a container of the serving image, which is gone when it ends; ``token`` is the Hub's, in a pipe."""
    mounts = [(str(token), "/run/secrets/hub_token", "ro")] if token else []
    return projects.alone(
        BUILDER,
        lambda docker: docker.compose.run(
            "engine-builder",
            list(arguments),
            name=name,
            tty=False,
            stream=True,
            dependencies=False,
            remove=True,
            volumes=mounts,
        ),
        {"STACK_SERVER_IMAGE": image, **projects.places(BUILDER)},
        profile,
        override={"engine-builder": gpu_reservation(gpu)} if gpu else None,
    )


def client(projects: Projects, name: str, stack: str | None, argv: Sequence[str], terminal: bool) -> DockerCall:
    """A lab's client on a stack's network, or without a stack its report; on this terminal, or on none."""
    service = "client" if stack else "report"

    def call(docker: DockerClient) -> object:
        return docker.compose.run(
            service, list(argv), name=name, tty=terminal, stream=not terminal, dependencies=False, remove=True
        )

    if stack:
        return projects.call(stack, call)
    values = {"STACK_CLIENT_IMAGE": images.client_image(projects.workspace), **projects.places(REPORT)}
    return projects.alone(REPORT, call, values)


def service(number: int) -> str:
    """The Compose service of a server; the first has the name that it has in compose.yaml."""
    return "triton" if number == 1 else f"triton-{number}"


def client_endpoints(record: Record) -> Endpoints:
    """Where a lab's clients reach a stack: in containers, in its own network; of the metrics, each server's."""
    if record.runtime == "local":
        return Endpoints(**record.scrape_endpoints)
    first = record.servers[0]
    alone = not record.balance or record.endpoints == first.endpoints
    host = service(first.number) if alone else ENVOY
    clients_spread = record.balance == CLIENT and not alone
    grpc = f"dns:///{ALL_SERVERS}" if clients_spread else host
    counters = ",".join(f"{service(server.number)}:{METRICS}" for server in record.servers)
    return Endpoints(f"{host}:{HTTP}", f"{grpc}:{GRPC}", counters)


def door_arguments(record: Record, endpoint: str, port: int, host: str = LOOPBACK) -> list[str]:
    """Python's arguments for the OpenAI API in front of the stack at ``endpoint`` (gRPC)."""
    served = ["--endpoint", endpoint, "--models", ",".join(record.models)]
    served += ["--tokenizer", record.tokenizer_dir] if record.tokenizer_dir else []
    return ["-m", "labdoor", *served, "--port", str(port), "--host", host]


def door_inside(record: Record) -> list[str]:
    """:func:`door_arguments` in the API's container: it speaks to the server, or to the balancer before several."""
    return door_arguments(record, client_endpoints(record).grpc, DOOR_PORT, ANYWHERE)


def compose_up(projects: Projects, record: Record, services: Sequence[str], **options: Any) -> DockerCall:
    """Start services of a stack, which has their images; ``options`` are those of ``docker.compose.up``."""
    return projects.call(
        record.stack,
        lambda docker: docker.compose.up(
            list(services), detach=True, no_build=True, pull="never", stream_logs=True, **options
        ),
    )


def compose_down(projects: Projects, stack: str, force: bool) -> DockerCall:
    """Stop a stack and remove all of its project.

    Compose finds it by the labels of its containers, whatever the stack's files say today.
    """
    grace = 0 if force else None
    return DockerCall(
        lambda docker: docker.compose.down(remove_orphans=True, volumes=True, timeout=grace, stream_logs=True),
        project=projects.name(stack),
    )


def gpu_reservation(gpus: str | None, count: int = 1) -> dict[str, Any]:
    """A service's reservation of these GPUs, or of so many, in the place of compose.gpu.yaml's first one."""
    which = {"device_ids": gpus.split(",")} if gpus else {"count": count}
    request = {"driver": "nvidia", "capabilities": ["gpu"], **which}
    return {"deploy": {"resources": {"reservations": {"devices": [request]}}}}


def values(projects: Projects, plan: Plan, record: Record) -> dict[str, str]:
    """What compose.yaml's variables are for a stack."""
    workspace = projects.workspace
    http, grpc, metrics = record.ports
    variables = {
        "STACK_SERVER_IMAGE": images.server_image(workspace, record.profile, plan.image, plan.served.packages),
        "STACK_CLIENT_IMAGE": images.client_image(workspace),
        "STACK_HTTP_PORT": http,
        "STACK_GRPC_PORT": grpc,
        "STACK_METRICS_PORT": metrics,
    }
    arguments = plan.arguments(str(workspace.folder(record.stack).repository), ANYWHERE, (HTTP, GRPC, METRICS), "labs-")
    variables["STACK_SERVER_ARGS"] = shlex.join(arguments)
    return variables | {"STACK_OPENAI_ARGS": shlex.join(door_inside(record))}


def services(projects: Projects, plan: Plan, record: Record) -> dict[str, dict[str, Any]]:
    """What the stack's services have otherwise than in compose.yaml."""
    common: dict[str, Any] = {
        "environment": {**plan.server_env, "LABS_CLOSED": ",".join(CLOSED[record.options.client_shm])},
        "mem_limit": projects.memory(len(record.servers)),
        "stop_grace_period": f"{plan.served.exit_timeout + GRACE_S}s",
        "healthcheck": {"start_period": f"{record.options.patience:g}s"},  # Compose waits as long as labctl does
    }
    if not record.balance:
        return {"triton": common | _gpus(plan, record, None)}
    result: dict[str, dict[str, Any]] = {"client": {"environment": addresses(client_endpoints(record))}}
    result[ENVOY] = {"scale": 1}
    for server in record.servers:
        base = {"file": f"{projects.root}/compose.yaml", "service": "triton"}
        extends = {} if server.number == 1 else {"extends": base}
        result[service(server.number)] = {
            **extends,
            **common,
            **_gpus(plan, record, server.number),
            "ports": [f"{where}:{INNER_PORTS[name]}" for name, where in vars(server.endpoints).items()],
            "labels": {docker_engine.REPLICA: str(server.number)},
            "environment": {**common["environment"], REPLICA: str(server.number)},
            "networks": {"default": {"aliases": [ALL_SERVERS]}},
        }
    return result


def _gpus(plan: Plan, record: Record, replica: int | None) -> dict[str, Any]:
    """A server's reservation of GPUs, where it is another than compose.gpu.yaml's; None for a stack's only server."""
    if record.profile != "gpu":
        return {}
    gpus = nvidia.gpus_of_server(plan.gpu, plan.ranks, replica)
    return gpu_reservation(gpus, plan.ranks) if gpus or plan.ranks > 1 else {}


class Projects:
    """The Compose projects of one checkout."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.root = str(workspace.root)

    def require_usable_paths(self) -> None:
        """Raises LabError where Triton cannot serve from the checkout or the cache.

        The server, nobody if called by root, must be able to look into the cache that is there.
        """
        cache = self.workspace.cache
        for folder in (self.workspace.root, cache):
            require_plain_path(folder)
        if os.getuid() == 0 and cache.is_dir() and cache.stat().st_mode & 0o005 != 0o005:
            raise LabError(
                f"the server cannot read {cache}",
                "called by root, it runs as nobody (65534), and the folder is root's alone",
                f"chmod o+rx {cache}, or another LABS_CACHE",
                code="cache-unreadable-inside",
            )

    def name(self, stack: str) -> str:
        """Unlike for two checkouts, so that their stacks stand side by side."""
        return f"labs-{stack}-{hashlib.sha256(self.root.encode()).hexdigest()[:8]}"

    def memory(self, servers: int) -> str:
        """The memory limit of each of ``servers`` that share this machine, in bytes; LABS_MEMORY names another."""
        return os.environ.get("LABS_MEMORY") or str(psutil.virtual_memory().total * 9 // 10 // servers)

    def places(self, project: str) -> dict[str, str]:
        """compose.yaml's variables for the folders of this checkout and for the user that may write there."""
        return {
            "STACK_CHECKOUT": self.root,
            "STACK_ROOT": self.root,  # by which labctl finds its stacks
            "STACK_NAME": project,
            "STACK_CACHE": str(self.workspace.cache),
            "STACK_USER": docker_engine.user_inside(),
            "STACK_MEMORY": self.memory(1),
        }

    def _files(self, profile: str) -> list[Path]:
        names = ["compose.yaml", "compose.gpu.yaml"] if profile == "gpu" else ["compose.yaml"]
        return [self.workspace.root / name for name in names]

    # -- a stack's two files: the values of compose.yaml's variables, and what is otherwise than there ----------------

    def write(self, record: Record, values: Mapping[str, str], services: Mapping[str, Any]) -> None:
        """Write both files of a stack; each is whole, or as before."""
        stack, folder, common = record.stack, self.workspace.folder(record.stack), self.places(record.stack)
        # Secrets are mounted: no environment, label or file of ours has what is in them.
        secrets = {"triton_secret": {"file": str(folder.secret)}}
        _write_override(folder.compose_file, {RECORD: record.to_json(), "services": services, "secrets": secrets})
        exported = {f"STACK_{name}": os.environ.get(f"LABS_{name}", "") for name in EXPORTED}
        variables = {
            "COMPOSE_PROJECT_NAME": self.name(stack),
            "COMPOSE_PATH_SEPARATOR": ":",
            "COMPOSE_FILE": ":".join(map(str, [*self._files(record.profile), folder.compose_file])),
            "COMPOSE_PROFILES": "",
            **common,
            "STACK_SERVER_USER": common["STACK_USER"] if os.getuid() else f"{NOBODY}:{NOBODY}",
            "STACK_CHAT_IMAGE": images.client_image(self.workspace).replace("labs-client", "labs-chat"),
            **{name: value for name, value in exported.items() if value},
            **images.build_environment(),
            **values,
        }
        self._write_values(folder.env_file, variables)

    def add(self, stack: str, values: Mapping[str, str], profile: str) -> None:
        """Add values to a stack's file, and a profile of Compose: what is started beside its servers."""
        variables = {**self.read(stack), **values}
        profiles = {*variables.get("COMPOSE_PROFILES", "").split(","), profile} - {""}
        variables["COMPOSE_PROFILES"] = ",".join(sorted(profiles))
        self._write_values(self.workspace.folder(stack).env_file, variables)

    def read(self, stack: str) -> dict[str, str]:
        """The values in a stack's file; {} where there is none."""
        with contextlib.suppress(FileNotFoundError):
            return read_values(self.workspace.folder(stack).env_file.read_text(encoding="utf-8"))
        return {}

    def _write_values(self, path: Path, values: Mapping[str, str]) -> None:
        head = f"# docker compose --env-file {path} ps|logs|exec|run --rm client|up -d|down\n"
        atomic_write(path, head + write_values(values), mode=0o600)

    def _read_override(self, stack: str) -> dict[str, Any]:
        """What :meth:`write` wrote of a stack's services; {} where there is none."""
        with contextlib.suppress(OSError, ValueError):
            text = self.workspace.folder(stack).compose_file.read_text(encoding="utf-8").replace("$$", "$")
            document: dict[str, Any] = json.loads(text.replace(": !override [", ": ["))
            return document
        return {}

    def record(self, stack: str) -> Record | None:
        """The record of the stack that its files describe; None where there is none."""
        with contextlib.suppress(ValueError):
            return Record.from_json(str(self._read_override(stack).get(RECORD)))
        return None

    def forget(self, stack: str, service: str) -> None:
        """Take a service out of the stack's file, so that ``docker compose up`` by hand does not bring it back."""
        if service in (document := self._read_override(stack)).get("services", {}):
            del document["services"][service]
            _write_override(self.workspace.folder(stack).compose_file, document)

    def call(self, stack: str, call: Call) -> DockerCall:
        """A call of ``docker compose`` on a stack, as its files describe it."""
        return DockerCall(call, env_file=self.workspace.folder(stack).env_file)

    def alone(
        self,
        project: str,
        call: Call,
        values: Mapping[str, str],
        profile: str = "cpu",
        override: Mapping[str, Any] | None = None,
    ) -> DockerCall:
        """A call of ``docker compose`` without a stack: its values are its variables, so that it can be pasted.

        Args:
            override: what its services have otherwise than in the checkout's files; it is written to a file.
        """
        files = self._files(profile)
        if override:
            path = self.workspace.folder(project).compose_file
            files.append(path)
            _write_override(path, {"services": override})
        return DockerCall(call, files=files, project=self.name(project), values=values)


def _write_override(path: Path, document: Mapping[str, Any]) -> None:
    """Write a Compose file; its lists of ports and devices take the place of the other files' own."""
    text = json.dumps(document, indent=1)
    for key in ("ports", "devices"):
        text = text.replace(f'"{key}": [', f'"{key}": !override [')
    atomic_write(path, text.replace("$", "$$"))  # Compose would take a dollar for a variable


def write_values(values: Mapping[str, str]) -> str:
    """Variables as lines of a file that Compose takes with ``--env-file``; it finds in them what we found."""
    lines = []
    for name, value in values.items():
        escaped = "".join(ESCAPED.get(character, character) for character in value)
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def read_values(text: str) -> dict[str, str]:
    """What :func:`write_values` wrote."""
    plain = {escaped: character for character, escaped in ESCAPED.items()}
    values = {}
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            name, _, quoted = line.partition("=")
            values[name] = re.sub(r"\\.", lambda match: plain[match[0]], quoted[1:-1])
    return values
