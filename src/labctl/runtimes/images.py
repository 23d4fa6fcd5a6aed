"""The images of the compose runtime: named by a hash of the files in them, built when that name is missing."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from labbuild import release
from labbuild.protocol import GpuInfo
from labctl.listener import Listener
from labctl.litter import files_in
from labctl.runtimes import docker_engine, layers, nvidia, processes
from labctl.runtimes.docker_cli import DockerCall
from labctl.workspace import Workspace
from labkit.errors import LabError

LABEL = "labs.image"  # docker/'s Compose files give it to every image that they build
CONFLICT = 409

BUILD_FILES = ("docker/Dockerfile", "docker/install-packages.sh", "requirements/build.txt", "pyproject.toml")
SERVER_FILES = (
    *BUILD_FILES,
    "docker/slim-server.sh",
    "docker/serve.sh",
    "requirements/server.txt",
    "requirements/torch.txt",
)
OWN_GPU_FILES = (*SERVER_FILES, "requirements/vllm-gpu.txt")
GPU_FILES = ("docker/Dockerfile", "docker/serve.sh", "requirements/gpu.txt")
HUB_FILES = (
    *SERVER_FILES,
    *(
        f"requirements/{name}"
        for name in ("client.txt", "chat.txt", "hub.txt", "hub/package.json", "hub/package-lock.json")
    ),
)
CLIENT_FILES = (*BUILD_FILES, "docker/slim-client.sh", "requirements/client.txt", "requirements/chat.txt")

SERVED = ("labsched", "labserve")  # the packages that models import

# What the labs' own models need on a GPU image without TensorRT-LLM: a file of requirements/.
PACKAGES = "gpu.txt"
PACKAGES_CUDA = 13  # PyTorch's build in it brings CUDA 13.0
MORE_DISK = "docker builder prune, and labctl images prune --old"
# The last lines of a failed build say what it lacked: disk, a proxy, a CA bundle, a wheel.
IF_IT_FAILS = f"{processes.LOOK_ABOVE}, and docs/operate/compose.md (Images) what to set; or {docker_engine.LOCAL}"
PULL_MINUTES, BUILD_MINUTES = 15, 4  # of one image, on an everyday connection


def server_image(workspace: Workspace, profile: str, base: str | None = None, packages: str | None = None) -> str:
    """Name of the server image for this checkout's sources.

    Args:
        base: an image of NVIDIA's that it is made of, gpu only; else it is our own, which has vLLM's build for GPUs.
        packages: the layer that it has over its own packages, cpu only.
    """
    if profile == "gpu" and not base:
        return f"labs-server:gpu-{_digest(workspace, OWN_GPU_FILES)}"
    if profile == "gpu":
        return f"labs-server:gpu-{_digest(workspace, GPU_FILES, base, below=SERVED)}"
    if packages:
        return f"labs-server:cpu-{packages}-{_digest(workspace, (*SERVER_FILES, f'requirements/{packages}.txt'))}"
    return f"labs-server:cpu-{_digest(workspace, SERVER_FILES)}"


def client_image(workspace: Workspace) -> str:
    return f"labs-client:{_digest(workspace, CLIENT_FILES)}"


def hub_image(workspace: Workspace) -> str:
    """The name of the image of a class: JupyterHub's, and each learner's."""
    return f"labs-hub:{_digest(workspace, HUB_FILES)}"


def image_digest(image: str) -> str | None:
    """Return what an image is, wherever it was pulled; None where it is not here.

    Raises LabError where no engine answers.
    """
    import docker.errors

    with docker_engine.engine_failures(f"looking for image {image}"):
        try:
            found = docker_engine.engine().images.get(image)
        except docker.errors.ImageNotFound:
            return None
        digests = found.attrs.get("RepoDigests") or [found.id]  # an image that was built here has no digest
        return str(digests[0]).rpartition("@")[2]


def exists(image: str) -> bool:
    """Whether an image is here, as far as an engine can be asked."""
    with contextlib.suppress(LabError):
        return bool(image_digest(image))
    return False


def build_environment() -> dict[str, str]:
    """What a build takes from this machine's pip settings: wheels, a CA bundle, an index, where there are any."""
    variables = {}
    wheels = os.environ.get("LABS_WHEELS") or os.environ.get("PIP_FIND_LINKS", "")
    if Path(wheels).is_absolute() and Path(wheels).is_dir():
        variables["LABS_WHEELS"] = wheels
    if index := os.environ.get("LABS_TORCH_INDEX"):
        variables["LABS_TORCH_INDEX"] = index
    for name in ("LABS_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        if (value := os.environ.get(name)) and Path(value).is_file():
            variables.setdefault("LABS_CA_BUNDLE", value)
    return variables


def target(base: str | None) -> dict[str, str]:
    """compose.gpu.yaml's variable for an image made of NVIDIA's ``base``; {} without one."""
    return {"STACK_GPU_TARGET": "nvidia"} if base else {}


def build_arguments(base: str | None) -> dict[str, str]:
    """The arguments of docker/Dockerfile for an image made of NVIDIA's ``base``; {} without one."""
    if not base:
        return {}
    return {"TRITON_IMAGE": base, "LABS_PACKAGES": "" if base == release.IMAGE else PACKAGES}


def sources(workspace: Workspace, below: Sequence[str]) -> list[Path]:
    """The Python files, and the YAML files that they read, that go into the images, below the checkout."""
    every = [path for folder in below for path in files_in(workspace.root / "src" / folder)]
    return [path.relative_to(workspace.root) for path in every if path.suffix in (".py", ".yaml")]


@functools.cache
def _digest(workspace: Workspace, files: tuple[str, ...], *more: str, below: Sequence[str] = ("",)) -> str:
    """A hash of files and of the Python sources below folders of ``src``; one process asks for it a dozen times."""
    digest = hashlib.sha256()
    for path in (*map(Path, files), *sources(workspace, below)):
        digest.update(os.fsencode(f"{path}\0"))
        digest.update((workspace.root / path).read_bytes())
    digest.update("\0".join(more).encode())
    return digest.hexdigest()[:12]


def list_built(workspace: Workspace) -> list[dict[str, Any]]:
    """The labs' images on this engine: name, bytes, when made (seconds since the epoch), ``current``."""
    with docker_engine.engine_failures("listing images"):
        ours = docker_engine.engine().images.list(filters={"label": LABEL})
    current = {server_image(workspace, "cpu"), client_image(workspace), hub_image(workspace)}
    current |= {server_image(workspace, "gpu", base) for base in (None, release.PLAIN_IMAGE, release.IMAGE)}
    current |= {server_image(workspace, "cpu", packages=name) for name in layers.NAMES}
    current |= {name.replace("labs-client", "labs-chat") for name in current}
    rows = []
    for image in ours:
        made = datetime.fromisoformat(image.attrs["Created"]).timestamp()
        facts = {"bytes": int(image.attrs["Size"]), "made": made}
        names = image.tags or [image.short_id]
        rows += [{"name": name, **facts, "current": name in current} for name in names]
    return sorted(rows, key=lambda row: str(row["name"]))


def remove_images(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Remove images by name; the removed names, and the names that a container still uses."""
    import docker.errors

    kept = []
    for name in names:
        with docker_engine.engine_failures(f"removing image {name}"):
            try:
                docker_engine.engine().images.remove(name)
            except docker.errors.APIError as error:
                if error.status_code != CONFLICT:
                    raise
                kept.append(name)
    return [name for name in names if name not in kept], kept


def build_missing_images(listener: Listener, builds: Mapping[str, DockerCall], base: str | None = None) -> None:
    """Build those of ``builds`` that are not there yet, on NVIDIA's image ``base`` or on none."""
    missing = [name for name in builds if not exists(name)]
    pulled = (
        base if base and not exists(base) else None
    )  # also its digest is wanted, which a build alone would not keep
    if count := bool(pulled) + len(missing):
        images = f"{count} images are" if count > 1 else "1 image is"
        minutes = PULL_MINUTES * bool(pulled) + BUILD_MINUTES * len(missing)
        listener.note(f"{images} made first: about {minutes} minutes, once")
    if pulled:
        pull_image(listener, pulled)
    for name in missing:
        if not exists(name):  # another command may have built it meanwhile
            _build(listener, name, builds[name])


def pull_image(listener: Listener, image: str) -> None:
    """Pull an image from its registry."""
    listener.step(f"image {image} (many gigabytes)")
    pull = DockerCall(lambda docker: docker.image.pull(image, stream_logs=True))
    pull.run_to_end(listener, f"image {image} cannot be pulled", IF_IT_FAILS, code="image-pull-failed")
    listener.done("pulled")


def _build(listener: Listener, name: str, build: DockerCall) -> None:
    """Build an image. Compose's exit status alone is not believed."""
    listener.step(f"image {name}")
    failed = f"image {name} cannot be built"
    tail = build.run_to_end(listener, failed, IF_IT_FAILS, code="image-build-failed")
    if not image_digest(name):
        why = "docker compose says that it was built"
        raise LabError(failed, why, IF_IT_FAILS, details=tail, code="image-build-failed")
    listener.done("built")


def gpu_target(image: str, gpu: str | None) -> GpuInfo:
    """Return what an engine that is built or served here with ``image`` is tied to; the first GPU counts."""
    first = nvidia.gpus(gpu)[0]
    return GpuInfo(first.name, first.compute_capability, first.driver, image_digest(image))
