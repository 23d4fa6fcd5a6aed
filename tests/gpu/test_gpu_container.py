"""The GPU image, built on a stand-in for NVIDIA's, and its hardened container: everything but the GPU.

Skipped where there is no Docker engine.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from checkout import ROOT
from docker.models.containers import Container
from image_build import built

from labbuild import release
from labctl.listener import Silent
from labctl.runtimes import images
from labctl.runtimes.compose import ComposeRuntime
from labctl.workspace import Workspace

STAND_IN = Path(__file__).parent / "stand_in"
PATIENCE_S = 60

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def gpu_image(engine: docker.DockerClient) -> str:
    """The target ``nvidia`` of docker/Dockerfile over the stand-in."""
    base = built("labs-test:stand-in", str(STAND_IN))
    dockerfile = str(ROOT / "docker/Dockerfile")
    stage = ["--target", "nvidia", "--build-arg", f"TRITON_IMAGE={base}"]
    return built("labs-test:gpu-stand-in", "--file", dockerfile, *stage, str(ROOT))


@pytest.fixture(scope="module")
def hardening() -> dict[str, Any]:
    """The triton service's options as Compose makes them of both files."""
    files = ["-f", str(ROOT / "compose.yaml"), "-f", str(ROOT / "compose.gpu.yaml")]
    argv = ["docker", "compose", *files, "config", "--format", "json"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)["services"]["triton"]
    return found


@pytest.fixture
def hardened(engine: docker.DockerClient, gpu_image: str, hardening: dict[str, Any]) -> Iterator[Any]:
    """``hardened(COMMAND, entrypoint=...)``: a container as the profile starts it, only without a GPU."""
    started: list[Container] = []

    def start(*command: str, entrypoint: list[str]) -> Container:
        tmpfs = dict(str(mount).split(":", 1) for mount in hardening["tmpfs"])
        container = engine.containers.run(
            gpu_image,
            list(command),
            entrypoint=entrypoint,
            detach=True,
            init=bool(hardening["init"]),
            read_only=bool(hardening["read_only"]),
            cap_drop=hardening["cap_drop"],
            security_opt=hardening["security_opt"],
            user=str(hardening["user"]),
            tmpfs=tmpfs,
            shm_size=str(hardening["shm_size"]),
            network_mode="none",
        )
        started.append(container)
        return container

    yield start
    for container in started:
        container.remove(force=True)


def ended(container: Container) -> str:
    status = container.wait(timeout=PATIENCE_S)["StatusCode"]
    text: str = container.logs().decode()
    assert status == 0, text
    return text


def test_openmpi_starts_alone_in_the_hardened_container(hardened: Any) -> None:
    """TensorRT-LLM's backend starts it on one GPU too."""
    assert "rank 0 of 1: sum 1" in ended(hardened(entrypoint=["tritonserver"]))


def test_whoever_asks_for_the_users_name_and_home_is_told_and_what_it_compiles_can_be_run(hardened: Any) -> None:
    said = (
        "import getpass, os, pathlib, subprocess, tempfile\n"
        "print(getpass.getuser(), os.path.expanduser('~'), os.getuid())\n"
        "made = pathlib.Path(tempfile.mkdtemp(dir='/tmp'), 'kernel')\n"
        "made.write_text('#!/bin/sh\\necho ran')\n"
        "made.chmod(0o755)\n"
        "print(subprocess.run([made], capture_output=True, text=True, check=True).stdout)\n"
    )
    text = ended(hardened("-c", said, entrypoint=["python3"]))
    assert text.split() == ["labs", "/tmp", "65534", "ran"]


def test_the_image_has_our_models_code(hardened: Any) -> None:
    assert ended(hardened("-c", "import labserve", entrypoint=["python3"])) == ""


def test_templates_and_the_version_of_tensorrt_llm_come_out_of_the_image(
    gpu_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "server_image", lambda *asked: gpu_image)
    runtime = ComposeRuntime(Workspace(ROOT, tmp_path / "cache"))
    notes: list[str] = []
    monkeypatch.setattr(Silent, "note", lambda self, text: notes.append(text))
    for version in ("9.9.0", "9.9.1"):
        folder = tmp_path / version
        monkeypatch.setattr(release, "PACKAGE", version)
        runtime._copy_templates(Silent(), "nvidia", folder)
        assert (folder / "tensorrt_llm" / "config.pbtxt").read_text() == (STAND_IN / "template.txt").read_text()
    (note,) = notes
    assert "nvidia has TensorRT-LLM 9.9.0, and labctl's table is that of 9.9.1" in note
