"""The images of the compose runtime: named by a hash of all that goes into them, built when that name is missing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from labctl.workspace import Workspace

BUILD_FILES = ("docker/install-packages.sh", "requirements/build.txt", "pyproject.toml")
SERVER_FILES = (
    *BUILD_FILES,
    "docker/server.cpu.Dockerfile",
    "docker/slim-server.sh",
    "docker/serve.sh",
    "requirements/server.txt",
    "requirements/torch.txt",
)
GPU_FILES = ("docker/server.gpu.Dockerfile", "docker/launch-ranks.sh", "docker/run-example.sh", "requirements/gpu.txt")
CLIENT_FILES = (*BUILD_FILES, "docker/client.Dockerfile", "requirements/client.txt")


def server_image(workspace: Workspace, profile: str, base: str = "") -> str:
    """Name of the server image for this checkout's sources (``base``: another tritonserver image, gpu only)."""
    if profile == "gpu":
        return f"labs-server:gpu-{_digest(workspace, GPU_FILES, base, sources='labserve')}"
    return f"labs-server:cpu-{_digest(workspace, SERVER_FILES)}"


def client_image(workspace: Workspace) -> str:
    return f"labs-client:{_digest(workspace, CLIENT_FILES)}"


def digest(image: str) -> str:
    """What an image is, wherever it was pulled; "" where it is not here. Raises LabError where no engine answers."""
    import docker.errors

    from labctl.runtimes.docker_engine import engine, speaking

    with speaking(f"looking for image {image}"):
        try:
            found = engine().images.get(image)
        except docker.errors.ImageNotFound:
            return ""
        return str(next(iter(found.attrs.get("RepoDigests") or [found.id])).rpartition("@")[2])


def exists(image: str) -> bool:
    """Raises LabError where no engine answers."""
    import docker.errors

    from labctl.runtimes.docker_engine import engine, speaking

    with speaking(f"looking for image {image}"):
        try:
            engine().images.get(image)
        except docker.errors.ImageNotFound:
            return False
        return True


def build_environment() -> dict[str, str]:
    """What a build takes from this machine's pip settings: a wheel folder and a CA bundle, where there are any."""
    found = {}
    wheels = os.environ.get("LABS_WHEELS") or os.environ.get("PIP_FIND_LINKS", "")
    if Path(wheels).is_absolute() and Path(wheels).is_dir():
        found["LABS_WHEELS"] = wheels
    for name in ("LABS_CA_BUNDLE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
        if (value := os.environ.get(name)) and Path(value).is_file():
            found.setdefault("LABS_CA_BUNDLE", value)
    return found


def _digest(workspace: Workspace, files: tuple[str, ...], *more: str, sources: str = "") -> str:
    digest = hashlib.sha256("\0".join(more).encode())
    code = sorted(p for p in (workspace.root / "src" / sources).rglob("*.py") if "__pycache__" not in p.parts)
    for path in (*(workspace.root / name for name in files), *code):
        digest.update(f"{path.relative_to(workspace.root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
