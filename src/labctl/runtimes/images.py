"""The images of the compose runtime: named by a hash of all that goes into them, built when that name is missing."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from labctl.runtimes import docker_engine
from labctl.trtllm import releases
from labctl.workspace import Workspace

LABEL = "labs.image"  # docker/'s Compose files give it to every image that they build
CONFLICT = 409

BUILD_FILES = ("docker/install-packages.sh", "requirements/build.txt", "pyproject.toml")
SERVER_FILES = (
    *BUILD_FILES,
    "docker/server.cpu.Dockerfile",
    "docker/slim-server.sh",
    "docker/serve.sh",
    "requirements/server.txt",
    "requirements/torch.txt",
)
GPU_FILES = (
    "docker/server.gpu.Dockerfile",
    "docker/serve.sh",
    "docker/launch-ranks.sh",
    "docker/run-example.sh",
    "requirements/gpu.txt",
)
CLIENT_FILES = (*BUILD_FILES, "docker/client.Dockerfile", "requirements/client.txt")

# What a server and its tools read of the checkout where nobody can mount it.
CHECKOUT_FILES = ("docker/files.Dockerfile", "pyproject.toml")
CHECKOUT_FOLDERS = ("labs", "model_repos", "models")

GUARD_FILES = (*BUILD_FILES, "docker/client.Dockerfile", "requirements/guard.txt")


def server_image(workspace: Workspace, profile: str, base: str = "") -> str:
    """Name of the server image for this checkout's sources (``base``: another tritonserver image, gpu only)."""
    if profile == "gpu":
        return f"labs-server:gpu-{_digest(workspace, GPU_FILES, base, below='labserve')}"
    return f"labs-server:cpu-{_digest(workspace, SERVER_FILES)}"


def client_image(workspace: Workspace) -> str:
    return f"labs-client:{_digest(workspace, CLIENT_FILES)}"


def guard_image(workspace: Workspace) -> str:
    return f"labs-guard:{_digest(workspace, GUARD_FILES)}"


def all_images(workspace: Workspace, profile: str) -> list[str]:
    """Names of all images that a profile's stacks may start: the server's, the clients' and the guard's."""
    return [server_image(workspace, profile), client_image(workspace), guard_image(workspace)]


def files_image(workspace: Workspace) -> str:
    """Name of the image of the checkout's files, for machines that do not have them (docs/operate/kubernetes.md)."""
    found = sorted(path for folder in CHECKOUT_FOLDERS for path in (workspace.root / folder).rglob("*"))
    kept = [p for p in found if p.is_file() and not {"__pycache__", "exercises"} & set(p.parts)]
    names = tuple(str(path.relative_to(workspace.root)) for path in kept)
    return f"labs-files:{_digest(workspace, (*CHECKOUT_FILES, *names), below='labserve')}"


def digest(image: str) -> str:
    """What an image is, wherever it was pulled; "" where it is not here. Raises LabError where no engine answers."""
    import docker.errors

    with docker_engine.speaking(f"looking for image {image}"):
        try:
            built = docker_engine.engine().images.get(image)
        except docker.errors.ImageNotFound:
            return ""
        return str(next(iter(built.attrs.get("RepoDigests") or [built.id])).rpartition("@")[2])


def exists(image: str) -> bool:
    """Raises LabError where no engine answers."""
    return bool(digest(image))


def build_environment() -> dict[str, str]:
    """What a build takes from this machine's pip settings: a wheel folder and a CA bundle, where there are any."""
    variables = {}
    wheels = os.environ.get("LABS_WHEELS") or os.environ.get("PIP_FIND_LINKS", "")
    if Path(wheels).is_absolute() and Path(wheels).is_dir():
        variables["LABS_WHEELS"] = wheels
    for name in ("LABS_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        if (value := os.environ.get(name)) and Path(value).is_file():
            variables.setdefault("LABS_CA_BUNDLE", value)
    return variables


def sources(workspace: Workspace, below: str = "") -> list[Path]:
    """The Python files that go into the images, below the checkout."""
    every = (workspace.root / "src" / below).rglob("*.py")
    return sorted(path.relative_to(workspace.root) for path in every if "__pycache__" not in path.parts)


def _digest(workspace: Workspace, files: tuple[str, ...], *more: str, below: str = "") -> str:
    """One command asks a dozen times: what lies there unchanged is not read again."""
    digest = _digest_of(workspace, files, below, tuple(_stamps(workspace.root / "src" / below)), tuple(
        _stamp((workspace.root / file).stat()) for file in files
    ))  # fmt: skip
    whole = digest.copy()
    whole.update("\0".join(more).encode())
    return whole.hexdigest()[:12]


@functools.lru_cache(maxsize=64)
def _digest_of(workspace: Workspace, files: tuple[str, ...], below: str, *_: object) -> hashlib._Hash:
    digest = hashlib.sha256()
    for path in (*map(Path, files), *sources(workspace, below)):
        digest.update(f"{path}\0".encode())
        digest.update((workspace.root / path).read_bytes())
    return digest


def _stamps(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Which Python files there are below a folder, and how each would show that it has been changed."""
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append(entry.path)
                elif entry.name.endswith(".py"):
                    yield entry.path, _stamp(entry.stat())


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns


def list_built(workspace: Workspace) -> list[dict[str, Any]]:
    """The labs' images on this engine: name, bytes, when made (seconds since the epoch), ``current``.

    Raises:
        LabError: no engine answers.
    """
    with docker_engine.speaking("listing images"):
        ours = docker_engine.engine().images.list(filters={"label": LABEL})
    current = {*all_images(workspace, "cpu"), files_image(workspace)}
    current |= {server_image(workspace, "gpu", base) for base in _bases()}
    current |= {name.replace("labs-client", "labs-chat") for name in current}
    rows = [
        {
            "name": name,
            "bytes": int(image.attrs["Size"]),
            "made": datetime.fromisoformat(image.attrs["Created"]).timestamp(),
            "current": name in current,
        }
        for image in ours
        for name in image.tags or [image.short_id]
    ]
    return sorted(rows, key=lambda row: str(row["name"]))


def remove(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Remove images by name: those that are gone, and those that a container still uses."""
    import docker.errors

    gone, kept = [], []
    for name in names:
        with docker_engine.speaking(f"removing image {name}"):
            try:
                docker_engine.engine().images.remove(name)
                gone.append(name)
            except docker.errors.APIError as error:
                if error.status_code != CONFLICT:
                    raise
                kept.append(name)
    return gone, kept


def _bases() -> list[str]:
    return [releases.PLAIN_IMAGE, *(release.image for release in releases.table().values())]
