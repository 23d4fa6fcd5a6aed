"""x86_64 and arm64: one name for each, the right lock line and engine, and nothing that takes one for granted."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from lab_errors import lab_error

from labctl.architecture import ARM, X86, canonical_architecture, container_platform, server_architecture
from labctl.artifacts import engines
from labctl.listener import Silent
from labctl.runtimes import wheel
from labctl.runtimes.layers import Layer
from labctl.runtimes.local import LocalRuntime
from labctl.workspace import Workspace


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine says that it is an ARM."""
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.delenv("DOCKER_DEFAULT_PLATFORM", raising=False)


@pytest.mark.parametrize(
    ("name", "words"), [(X86, "x86_64 AMD64 amd64"), (ARM, "aarch64 arm64 ARM64"), ("riscv64", "riscv64")]
)
def test_each_architecture_has_one_name(name: str, words: str) -> None:
    assert {canonical_architecture(word) for word in words.split()} == {name}


@pytest.mark.parametrize(
    ("system", "machine", "asked", "servers", "containers"),
    [
        ("Linux", "aarch64", "", ARM, "linux/arm64"),
        ("Linux", "x86_64", "", X86, "linux/amd64"),
        ("Linux", "aarch64", "linux/amd64", ARM, "linux/arm64"),  # what runs outside containers decides
        ("Darwin", "arm64", "", ARM, "linux/arm64"),
        ("Darwin", "arm64", "linux/amd64", X86, "linux/amd64"),
        ("Darwin", "arm64", "linux/arm64/v8", ARM, "linux/arm64"),
        ("Darwin", "x86_64", "", X86, "linux/amd64"),
    ],
)
def test_a_server_has_the_architecture_of_its_machine_or_of_its_containers(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, asked: str, servers: str, containers: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setenv("DOCKER_DEFAULT_PLATFORM", asked)
    assert (server_architecture(), container_platform()) == (servers, containers)


def test_an_engine_of_another_architecture_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = set()
    for machine in (X86, "aarch64", "arm64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        keys.add(engines.request("openvino", "shipped:tiny-llama", {}).key)
    assert len(keys) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the local runtime is Linux's")
def test_the_local_runtime_takes_arm(arm: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wheel, "find_wheel", lambda: None)
    monkeypatch.setattr(wheel, "libpython", lambda: Path("libpython.so"))
    LocalRuntime(Workspace(tmp_path, tmp_path)).check("cpu")


def test_the_local_runtime_refuses_another_processor_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with lab_error("platform-unsupported", "riscv64"):
        LocalRuntime(Workspace(tmp_path, tmp_path)).check("cpu")


def test_vllm_is_refused_on_arm_before_anything_is_downloaded(arm: None, tmp_path: Path) -> None:
    found = Layer("vllm", Workspace(ROOT, tmp_path))
    with lab_error("layer-unsupported", "x86_64", "aarch64"):
        found.install(Silent())
    with lab_error("layer-unsupported"):
        found.require()
    assert list(tmp_path.iterdir()) == []


def test_vllms_build_for_gpus_is_for_arm_too(arm: None, tmp_path: Path) -> None:
    assert not Layer("vllm", Workspace(ROOT, tmp_path), gpu=True).elsewhere


INDEX = "https://torch.example/cu130"


@pytest.mark.parametrize(
    ("machine", "index", "folder", "asked"),
    [
        ("x86_64", "", "", r"install --no-deps torch==2.13.0\+cpu"),
        ("aarch64", "", "", r"install --no-deps torch==2.9.1"),
        ("x86_64", INDEX, "", rf"install .*--index-url {INDEX} torch==\S+"),
        ("x86_64", INDEX, "wheels", rf"download --dest wheels .*--index-url {INDEX} torch==\S+"),
    ],
)
def test_each_machine_asks_for_its_own_pytorch_and_downloads_it_where_everything_is(
    tmp_path: Path, machine: str, index: str, folder: str, asked: str
) -> None:
    for name, text in {"pip": '[ "$1" = show ] || echo "$@"', "uname": f"echo {machine}"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LABS_PIP": str(tmp_path / "pip")}
    env |= {"LABS_TORCH_INDEX": index, "LABS_DOWNLOAD": folder, "LABS_COMPILE": ""}
    argv = ["sh", "docker/install-packages.sh", "requirements/torch.txt"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert re.fullmatch(asked, done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ("Linux x86_64", "no Python 3.11"),
        ("Linux aarch64", "no Python 3.11"),
        ("Darwin arm64", "needs Linux on x86_64"),
    ],
)
def test_setup_asks_for_a_python_on_both_and_for_linux_elsewhere(tmp_path: Path, said: str, error: str) -> None:
    (tmp_path / "uname").write_text(f"#!/bin/sh\necho {said}\n")
    (tmp_path / "uname").chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/setup.sh").write_text((ROOT / "scripts/setup.sh").read_text())
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "LABS_CACHE": ""}
    argv = ["bash", str(tmp_path / "scripts/setup.sh"), "/bin/false"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode and error in done.stderr


BUILT = [
    path
    for pattern in ("compose*.yaml", "docker/*", ".devcontainer/*", "deploy/**/*.yaml")
    for path in sorted(ROOT.glob(pattern))
    if path.is_file() and "gpu" not in path.name  # NVIDIA's images are not ours
]


def test_no_image_and_no_service_is_for_one_architecture_alone() -> None:
    named = r"amd64|arm64|x86.64|manylinux|platforms?:|beta.kubernetes.io|kubernetes.io/arch"
    found = {path.name: re.findall(named, re.sub(r"(#|//).*", "", path.read_text())) for path in BUILT}
    assert found and not {name: words for name, words in found.items() if words}
