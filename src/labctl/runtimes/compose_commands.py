"""The commands of the compose runtime, as data: what is run is what ``--dry-run`` shows."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from labctl.runtimes import images
from labctl.runtimes.envoy.config import INNER_PORTS, PUBLISHED_PORTS
from labctl.runtimes.leftovers import REPLICA
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Launch, Record
from labctl.triton.arguments import CLOSED, GRPC, HTTP, METRICS
from labctl.workspace import Workspace
from labkit.disk import atomic_write
from labkit.errors import LabError

ENVOY = "envoy"  # the service of what stands before the servers
BUILDER, REPORT = "builder", "report"  # projects of the containers that belong to no stack
GRACE_S = 5
FRONT_DIR = "/labs/front"
EVERY = "replicas"  # a host name that stands for every server of a stack
TOOLS = "cpu"  # weights and exports are made in the cpu image on either profile: its Python is labctl's own
NOBODY = 65534
# Its metadata says it; importing the package needs a GPU's driver.
TRTLLM_VERSION = "from importlib.metadata import version; print(version('tensorrt_llm'))"


def builds(projects: Projects, profile: str, base: str, packages: str = "") -> dict[str, Command]:
    """Every image that a profile needs, and a layer over the server's, by its name, and how it is built."""
    workspace, commands = projects.workspace, dict[str, Command]()

    def build(service: str, variable: str, image: str, profile: str = TOOLS, **arguments: str) -> None:
        words = ("--profile", "*", "--progress", "plain", "build", service)
        env = {variable: image, **arguments, **images.build_environment()}
        commands[image] = projects.command(BUILDER, words, env, profile=profile)

    build(
        "triton",
        "LABS_SERVER_IMAGE",
        images.server_image(workspace, profile, base),
        profile,
        **images.build_arguments(base),
    )
    if profile != TOOLS:
        build("triton", "LABS_SERVER_IMAGE", images.server_image(workspace, TOOLS))
    if packages and profile == TOOLS:  # our own image for GPUs has them
        layered = images.server_image(workspace, TOOLS, packages=packages)
        build(f"{packages}-image", f"LABS_{packages.upper()}_IMAGE", layered)
    build("client", "LABS_CLIENT_IMAGE", images.client_image(workspace))
    return commands


def build_files(projects: Projects, name: str) -> Command:
    """Build the image of the checkout's files (docs/operate/kubernetes.md)."""
    file, label = "docker/files.Dockerfile", f"{images.LABEL}=files"
    return Command(("docker", "build", "--file", file, "--label", label, "--tag", name, "."), cwd=Path(projects.root))


def copy_out(image: str, name: str, path: str, target: Path) -> list[Command]:
    """Copy a folder out of an image, through a container that prints the version of its TensorRT-LLM and ends."""
    asked = ("--network", "none", "--entrypoint", "python3", image, "-c", TRTLLM_VERSION)
    return [
        Command(("docker", "create", "--name", name, *asked), {}, f"{name}: {image}, removed at once"),
        Command(("docker", "start", "--attach", name)),
        Command(("docker", "cp", f"{name}:{path}/.", str(target))),
        Command(("docker", "rm", "--force", name)),
    ]


def one_shot(
    projects: Projects,
    name: str,
    image: str,
    arguments: Sequence[str],
    profile: str = TOOLS,
    gpus: int = 0,
    devices: Sequence[str] = (),
) -> Command:
    """A command in a container of the serving image, which is gone when it ends."""
    env = {"LABS_SERVER_IMAGE": image, **({"LABS_GPUS": str(gpus)} if gpus else {})}
    words = ("run", "--rm", "--no-deps", "-T", "--name", name, "engine-builder", *arguments)
    container = f"{name}: {image}{_gpus(gpus, devices)}, gone when it ends"
    override = projects.override_path(BUILDER) if devices else None
    return projects.command(BUILDER, words, env, profile=profile, override=override, container=container)


def client(projects: Projects, name: str, stack: str, argv: Sequence[str], terminal: bool) -> Command:
    """A lab's client on a stack's network, or without a stack its report; on this terminal, or on none."""
    image = images.client_image(projects.workspace)
    options = ("--rm", "--no-deps", "--name", name, *(() if terminal else ("-T",)))
    words = ("--progress", "quiet", "run", *options, "client" if stack else "report", *argv)
    # Compose knows a project by compose.yaml alone here: it would warn of every replica but the first.
    env = {"LABS_CLIENT_IMAGE": image, "COMPOSE_IGNORE_ORPHANS": "true"}
    return projects.command(stack or REPORT, words, env, container=f"{name}: {image}, gone when it ends")


def service(number: int) -> str:
    """The Compose service of a server; the first has the name that it has in compose.yaml."""
    return "triton" if number == 1 else f"triton-{number}"


def serve(projects: Projects, launch: Launch) -> Command:
    """Start the servers' containers, and Envoy's before them."""
    record, front = launch.record, _front_environment(projects, launch.record)
    image = images.server_image(projects.workspace, record.profile, launch.image, launch.packages)
    arguments = launch.arguments("/models", "0.0.0.0", (HTTP, GRPC, METRICS), "labs-")
    gpus = launch.ranks if record.profile == "gpu" else 0
    env = {
        "LABS_SERVER_IMAGE": image,
        **({"LABS_SERVER_ARGS": shlex.join(arguments)} if launch.ranks == 1 else {}),  # else the launcher has its own
        "LABS_REPOSITORY": str(launch.repository),
        **front,
        "LABS_RESTART": f"on-failure:{record.options.supervise}" if record.options.supervise else "no",
        "LABS_SECRET_FILE": str(projects.workspace.folder(record.stack).secret),
        "LABS_CLOSED": ",".join(CLOSED[record.options.client_shm]),
        "LABS_MEMORY": projects.memory(len(record.servers)),
        "LABS_STOP_GRACE": f"{launch.exit_timeout + GRACE_S}s",
        **({"LABS_SHM_SIZE": launch.shm_size} if launch.shm_size else {}),
        **({"LABS_GPUS": str(gpus)} if gpus else {}),
    }
    runs = f", runs launch-ranks {launch.launcher} {launch.ranks}" if launch.ranks > 1 else ""
    where = f"on {', '.join(f'{record.bind}:{port}' for port in record.ports)}"
    name, services = projects.name(record.stack), [service(server.number) for server in launch.starting]
    if record.front:
        where = f"on loopback; before {name}-{ENVOY}-1: {front['LABS_CLIENT_IMAGE']}, {where}"
    shown = " and ".join(f"{name}-{one}-1" for one in services)
    container = f"{shown}: {image}{_gpus(gpus, launch.devices)}{runs}, {where}"
    if launch.only:
        return _up(projects, record, env, ("--no-deps", *services), container)
    return _up(projects, record, env, ("--remove-orphans", *services, *([ENVOY] if record.front else [])), container)


def front(projects: Projects, record: Record) -> Command:
    """Start Envoy's container alone."""
    env = _front_environment(projects, record)
    return _up(projects, record, env, ("--no-deps", "--force-recreate", ENVOY))


def _front_environment(projects: Projects, record: Record) -> dict[str, str]:
    """Where a stack is reached, and the image of what stands before its servers, with the file of the token."""
    env = dict(zip(("LABS_HTTP_PORT", "LABS_GRPC_PORT", "LABS_METRICS_PORT"), record.ports, strict=True))
    if record.front:
        env["LABS_CLIENT_IMAGE"] = images.client_image(projects.workspace)
    if record.exposed:
        env["LABS_TOKEN_FILE"] = str(projects.workspace.folder(record.stack).token)
    return env


def _up(
    projects: Projects, record: Record, env: Mapping[str, str], words: Sequence[str], container: str = ""
) -> Command:
    return projects.command(
        record.stack,
        ("up", "--detach", "--no-build", "--pull", "never", *words),
        env,
        profile=record.profile,
        override=projects.override_path(record.stack),
        container=container,
    )


def down(projects: Projects, stack: str, force: bool = False) -> Command:
    """Stop a stack and remove all of its project; Compose finds it by its labels."""
    hurry = ("--timeout", "0") if force else ()
    # Without files: it finds the project by its labels alone, whatever the files say today.
    words = ("--project-name", projects.name(stack), "down", "--remove-orphans", "--volumes", *hurry)
    return Command(("docker", "compose", *words), cwd=Path("/"))  # where there is no Compose file


def _gpus(count: int, devices: Sequence[str] = ()) -> str:
    if devices:
        return f", GPU {' and '.join(devices)}"
    return f", {count} GPU{'s' if count > 1 else ''}" if count else ""


def gpu_reservation(devices: Sequence[str]) -> dict[str, Any]:
    """A service's reservation of these GPUs or MIG slices, in the place of compose.gpu.yaml's first ones."""
    request = {"driver": "nvidia", "device_ids": list(devices), "capabilities": ["gpu"]}
    return {"deploy": {"resources": {"reservations": {"devices": [request]}}}}


def services(projects: Projects, launch: Launch) -> dict[str, dict[str, Any]]:
    """What only this start says of the services: the record, as a label, and the servers' environment."""
    record = launch.record
    own: dict[str, Any] = {"labels": {"labs.record": record.to_json()}, "environment": dict(launch.env)}
    if launch.ranks > 1:
        own |= {"entrypoint": ["launch-ranks", launch.launcher, str(launch.ranks)], "command": []}
    if launch.devices:
        own |= gpu_reservation(launch.devices)
    if not record.front:
        return {"triton": own}
    source = str(projects.workspace.folder(record.stack).front)
    folder = {"type": "bind", "source": source, "target": FRONT_DIR, "read_only": True}
    found: dict[str, dict[str, Any]] = {ENVOY: {"scale": 1, "volumes": [folder]}}
    if record.published:
        inner = [f"{where}:{INNER_PORTS[name]}" for name, where in vars(record.endpoints).items() if record.balance]
        outer = [f"{where}:{PUBLISHED_PORTS[name]}" for name, where in vars(record.published).items()]
        found[ENVOY]["ports"] = inner + outer
    for server in record.servers:
        number = server.number
        base = {"file": f"{projects.root}/compose.yaml", "service": "triton"}
        found[service(number)] = {
            **({"extends": base} if number > 1 else {}),
            **own,
            "ports": [f"{where}:{INNER_PORTS[name]}" for name, where in vars(server.endpoints).items()],
        }
        if record.balance:
            found[service(number)] |= {
                "labels": {**own["labels"], "labs.replica": str(number)},
                "environment": {**own["environment"], REPLICA: str(number)},
                "networks": {"default": {"aliases": [EVERY]}},
            }
    return found


class Projects:
    """The Compose projects of one checkout."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.root = str(workspace.root)

    def inside(self, path: Path, server: bool) -> str:
        """The path in the containers of a path of this machine; the mounts are compose.yaml's."""
        workspace = self.workspace
        mounts = [(workspace.models, "/labs/models"), (workspace.cache, "/labs/cache")]
        if path.is_relative_to(workspace.state) and (parts := path.relative_to(workspace.state).parts):
            folder = workspace.folder(parts[0])
            mounts += [(folder.run_dir(), "/labs/run"), *([(folder.repository, "/models")] if server else [])]
        if not server:
            mounts += [(workspace.root / "results", "/labs/results"), (workspace.root, "/labs/checkout")]
        for outside, inside in mounts:
            if path.is_relative_to(outside):
                return str(Path(inside) / path.relative_to(outside))
        raise LabError(
            f"the containers cannot see {path}",
            "they see labs/shared/models and the cache",
            f"put it below {workspace.cache}, or use --runtime local",
            code="path-outside-containers",
        )

    def require_readable_cache(self) -> None:
        """Raises LabError where the server, nobody if called by root, cannot look into the cache that is there."""
        cache = self.workspace.cache
        if os.getuid() == 0 and cache.is_dir() and cache.stat().st_mode & 0o005 != 0o005:
            raise LabError(
                f"the server cannot read {cache}",
                "called by root, it runs as nobody (65534), and the folder is root's alone",
                f"chmod o+rx {cache}, or another LABS_CACHE",
                code="cache-unreadable-inside",
            )

    def override_path(self, stack: str) -> Path:
        return self.workspace.folder(stack).compose_file

    def write_override(self, stack: str, services: Mapping[str, Any]) -> None:
        """Write what only this start says of the services. Ports and GPUs take the place of the other files' own."""
        text = json.dumps({"services": services}, indent=1)
        for key in ("ports", "devices"):
            text = text.replace(f'"{key}": [', f'"{key}": !override [')
        atomic_write(self.override_path(stack), text.replace("$", "$$"))  # Compose would take a dollar for a variable

    def name(self, stack: str) -> str:
        """Unlike for two checkouts, so that their stacks stand side by side."""
        return f"labs-{stack}-{hashlib.sha256(self.root.encode()).hexdigest()[:8]}"

    def environment(self, stack: str) -> dict[str, str]:
        """The values of compose.yaml's variables that are the same for every command on a stack."""
        user = f"{os.getuid()}:{os.getgid()}"
        return {
            "LABS_CHECKOUT": self.root,
            "LABS_STACK": stack,
            "LABS_CACHE": str(self.workspace.cache),
            "LABS_RUN": str(self.workspace.folder(stack).run_dir()),
            "LABS_RESULTS": str(self.workspace.root / "results"),
            "LABS_USER": user,
            "LABS_MEMORY": self.memory(1),
            "LABS_SERVER_USER": user if os.getuid() else f"{NOBODY}:{NOBODY}",
        }

    def memory(self, servers: int) -> str:
        """The memory limit of each of ``servers`` that share this machine, in bytes; LABS_MEMORY names another."""
        return os.environ.get("LABS_MEMORY") or str(psutil.virtual_memory().total * 9 // 10 // servers)

    def compose_files(self, profile: str = "cpu", override: Path | None = None) -> list[Path]:
        """The Compose files of a command, the later over the earlier."""
        over = ["compose.gpu.yaml"] * (profile == "gpu")
        return [*(self.workspace.root / name for name in ("compose.yaml", *over)), *([override] if override else [])]

    def command(
        self,
        stack: str,
        words: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        profile: str = "cpu",
        override: Path | None = None,
        container: str = "",
    ) -> Command:
        """A ``docker compose`` command on a stack's project."""
        files = self.compose_files(profile, override)
        options = [*(option for path in files for option in ("--file", str(path))), "--project-directory", self.root]
        argv = ["docker", "compose", "--project-name", self.name(stack), *options, *words]
        return Command(argv, {**self.environment(stack), **(env or {})}, container, self.workspace.root)
