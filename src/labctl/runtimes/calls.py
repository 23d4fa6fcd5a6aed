"""The ``docker compose`` commands of the compose runtime, as data: what is run is what ``--dry-run`` shows."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.runtimes import images
from labctl.runtimes.arguments import server_arguments
from labctl.runtimes.base import Launch
from labctl.trtllm import releases
from labctl.workspace import Workspace

BUILDER, REPORT = "builder", "report"  # projects of the containers that belong to no stack
GRACE_S = 5
TOOLS = "cpu"  # weights and exports are made in the cpu image on either profile: its Python is labctl's own
# What the labs' own models need on a GPU image without TensorRT-LLM: a file of requirements/.
PACKAGES = "gpu.txt"
PACKAGES_CUDA = 13  # PyTorch's build in it brings CUDA 13.0


@dataclass(frozen=True)
class Call:
    """One command on a Compose project: what comes after ``docker compose`` and its files, and the variables."""

    stack: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    profile: str = "cpu"


def builds(workspace: Workspace, profile: str, base: str) -> dict[str, Call]:
    """Every image that a profile needs, by its name, and how it is built."""
    server = images.server_image(workspace, profile, base)
    calls = {server: _build("triton", profile, {"LABS_SERVER_IMAGE": server, **_arguments(base)})}
    tools = images.server_image(workspace, TOOLS)
    if profile != TOOLS:
        calls[tools] = _build("triton", TOOLS, {"LABS_SERVER_IMAGE": tools})
    client = images.client_image(workspace)
    return {**calls, client: _build("client", TOOLS, {"LABS_CLIENT_IMAGE": client})}


def pull(image: str) -> tuple[str, ...]:
    return ("docker", "pull", image)


def copy_out(image: str, name: str, path: str, target: Path) -> list[tuple[str, ...]]:
    """Copy a folder out of an image, through a container that is never started."""
    return [
        ("docker", "create", "--name", name, image),
        ("docker", "cp", f"{name}:{path}/.", str(target)),
        ("docker", "rm", "--force", name),
    ]


def _build(service: str, profile: str, env: Mapping[str, str]) -> Call:
    command = ("--profile", "*", "--progress", "plain", "build", service)
    return Call(BUILDER, command, {**env, **images.build_environment()}, profile)


def _arguments(base: str) -> dict[str, str]:
    """The build arguments of docker/server.gpu.Dockerfile for an image of NVIDIA's ("" is no such image)."""
    if not base:
        return {}
    release = next((r for r in releases.table().values() if r.image == base), None)
    found = {"LABS_TRITON_IMAGE": base, "LABS_APP": "image"}
    if release is None:
        return {**found, "LABS_PACKAGES": PACKAGES}
    if release.app:
        found |= {
            "LABS_APP": "source",
            "LABS_BACKEND_COMMIT": release.app.backend,
            "LABS_TRTLLM_COMMIT": release.app.tensorrt_llm,
        }
    return {**found, "LABS_INSTALL": release.install}


def one_shot(name: str, image: str, arguments: Sequence[str], profile: str = TOOLS, gpus: int = 0) -> Call:
    """A command in a container of the serving image, which is gone when it ends."""
    env = {"LABS_SERVER_IMAGE": image, **({"LABS_GPUS": str(gpus)} if gpus else {})}
    command = ("run", "--rm", "--no-deps", "-T", "--name", name, "engine-builder", *arguments)
    return Call(BUILDER, command, env, profile)


def client(name: str, service: str, terminal: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
    return ("--progress", "quiet", "run", "--rm", "--no-deps", "--name", name, *terminal, service, *argv)


def serve(launch: Launch, image: str) -> Call:
    """Start the server's container."""
    http, grpc, metrics = (e.rpartition(":")[2] for e in dataclasses.astuple(launch.record.endpoints))
    arguments = server_arguments(
        "/models", address="0.0.0.0", shm_prefix="labs-", exit_timeout=launch.exit_timeout, extra=launch.server_args
    )
    env = {
        "LABS_SERVER_IMAGE": image,
        **({"LABS_SERVER_ARGS": shlex.join(arguments)} if launch.ranks == 1 else {}),  # else the launcher has its own
        "LABS_REPOSITORY": str(launch.repository),
        "LABS_BIND": launch.bind,
        "LABS_HTTP_PORT": http, "LABS_GRPC_PORT": grpc, "LABS_METRICS_PORT": metrics,
        "LABS_STOP_GRACE": f"{launch.exit_timeout + GRACE_S}s",
    }  # fmt: skip
    if launch.shm_size:
        env["LABS_SHM_SIZE"] = launch.shm_size
    if launch.record.profile == "gpu":
        env["LABS_GPUS"] = str(launch.ranks)
    command = ("up", "--detach", "--no-build", "--pull", "never", "--remove-orphans", "triton")
    return Call(launch.record.stack, command, env, launch.record.profile)


def down(force: bool = False) -> tuple[str, ...]:
    """Stop a stack and remove all of its project; Compose finds it by its labels."""
    return ("down", "--remove-orphans", "--volumes", *(("--timeout", "0") if force else ()))


def service(launch: Launch) -> dict[str, object]:
    """What only this start says of the ``triton`` service: the record, as a label, and the server's environment."""
    own: dict[str, object] = {"labels": {"labs.record": launch.record.to_json()}, "environment": dict(launch.env)}
    if launch.ranks > 1:
        own |= {"entrypoint": ["launch-ranks", launch.launcher, str(launch.ranks)], "command": []}
    return own
