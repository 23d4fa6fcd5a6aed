"""The gpu profile's checklist: every lack is found before anything is made, and says what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fake_hub import FakeHub, serve
from gpu_machine import A100, H100, TOKEN, Engine, failing, machine_fixture, planned, workspace_fixture
from lab_errors import is_lab_error, lab_error

from labbuild.protocol import GpuInfo
from labbuild.releases import release
from labctl.artifacts.store import measure
from labctl.cli.main import cli
from labctl.doctor.gpu import driver, gpu_checks
from labctl.runtimes import docker_engine, images, nvidia, wheel
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
__all__ = ("machine_fixture", "workspace_fixture")


def test_a_machine_that_has_it_all_passes(machine: Any, workspace: Workspace) -> None:
    checks = gpu_checks(planned(workspace), "compose", workspace)
    assert {check.name: check.state for check in checks} == {
        "NVIDIA driver": "ok",
        "container toolkit": "ok",
        "GPU": "ok",
        "GPU memory": "ok",
        "memory": "ok",
        "shared memory": "ok",
        "disk for engines": "ok",
        "model hub": "ok",
    }


def test_no_driver(machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = [check for check in failing(planned(workspace), workspace) if "driver" in check.name]
    assert "there is no NVIDIA driver here" in found.found
    assert "install the driver" in found.remedy


def test_a_driver_that_does_not_work_says_why(machine: Any, workspace: Workspace) -> None:
    machine("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.", status=9)
    assert "could not communicate" in failing(planned(workspace), workspace)[0].found


def test_an_answer_that_cannot_be_read_is_an_error_and_no_crash(machine: Any) -> None:
    machine("No devices were found")
    with lab_error("nvidia-answer-unreadable"):
        nvidia.gpus()


@pytest.mark.parametrize(
    ("version", "name", "state"),
    [
        ("535.104.05", "0.5.0", "ok"),
        ("535.104.05", "0.17.0", "warn"),
        ("525.60.13", "0.5.0", "warn"),
        ("470.223.02", "0.5.0", "fail"),
    ],
)
def test_the_driver_is_held_against_the_images_cuda(version: str, name: str, state: str) -> None:
    assert driver(version, release(name)).state == state


def test_a_host_with_the_runtime_hook_alone_hands_gpus_on(
    machine: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(docker_engine, "engine", lambda: Engine("runc"))
    with lab_error("nvidia-runtime-missing"):
        docker_engine.require_gpu()
    hook = tmp_path / "bin" / docker_engine.HOOK
    hook.write_text("#!/bin/sh\n")
    hook.chmod(0o755)
    docker_engine.require_gpu()


def test_pytorch_in_the_plain_image_needs_a_driver_for_its_own_cuda(machine: Any, workspace: Workspace) -> None:
    plan = planned(workspace, "", "iterative")
    (found,) = [check for check in failing(plan, workspace) if check.name == "NVIDIA driver"]
    assert "550.54.15 (CUDA 13 needs 580.65.06 or newer)" in found.found
    native = planned(workspace, "", "sequence-batcher")  # there only Triton's own backends compute on the GPU
    assert failing(native, workspace) == []
    machine("NVIDIA H100 80GB HBM3, 9.0, 580.82.07, 81559, 81000")
    assert failing(plan, workspace) == []


@pytest.mark.parametrize(
    ("version", "requires", "driver", "code"),
    [
        ("2.13.0+cpu", [], "580.82.07", "torch-without-cuda"),
        ("2.13.0", ["nvidia-cudnn-cu13==9"], "550.54.15", "nvidia-driver-too-old"),
        ("2.13.0", ["nvidia-cudnn-cu13==9"], "580.82.07", ""),
        ("2.9.0", ["nvidia-cudnn-cu12==9"], "550.54.15", ""),
    ],
)
def test_the_local_runtime_needs_a_pytorch_that_this_driver_runs(
    monkeypatch: pytest.MonkeyPatch, version: str, requires: list[str], driver: str, code: str
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    monkeypatch.setattr("importlib.metadata.requires", lambda name: requires)
    gpus = [nvidia.Gpu("NVIDIA H100", "9.0", driver, 80 * 10**9, 80 * 10**9)]
    if not code:
        wheel.require_cuda(gpus)
        return
    with lab_error(code):
        wheel.require_cuda(gpus)


@pytest.mark.parametrize(
    "line", ["NVIDIA GB10, 12.1, 580.82.07, [N/A], [N/A]", H100.replace("81559, 81000", "N/A, N/A")]
)
def test_memory_that_the_driver_does_not_tell_is_a_warning_and_no_crash(
    machine: Any, workspace: Workspace, line: str
) -> None:
    machine(line)
    assert nvidia.gpus()[0].free is None
    plan = planned(workspace)
    (found,) = [check for check in gpu_checks(plan, "compose", workspace) if check.name == "GPU memory"]
    assert found.state == "warn"
    assert "the driver does not say how much is free; needed 16.4 GB" in found.found


def test_the_checklist_asks_the_driver_of_the_chosen_gpus_alone(machine: Any, tmp_path: Path) -> None:
    (tmp_path / "bin" / "nvidia-smi").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "{H100}"\n')
    (found,) = nvidia.gpus(["1"])
    assert "--id=1" in (tmp_path / "asked").read_text()
    assert found.free
    (slice_of_it,) = nvidia.gpus(["MIG-5c89852c"])
    assert "--id" not in (tmp_path / "asked").read_text()
    assert (slice_of_it.name, slice_of_it.free) == (found.name, None)


def test_fault_22_no_container_toolkit(machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "engine", lambda: Engine("runc"))
    (found,) = [check for check in failing(planned(workspace), workspace) if check.name == "container toolkit"]
    assert "no NVIDIA runtime" in found.found
    assert "NVIDIA Container Toolkit" in found.remedy


def test_a_chip_without_fp8(machine: Any, workspace: Workspace) -> None:
    machine(A100)
    (found,) = [check for check in failing(planned(workspace, quantization="fp8"), workspace) if check.name == "GPU"]
    assert "does not support fp8" in found.found
    assert "quantization=none" in found.remedy


def test_a_chip_that_is_newer_than_the_release(machine: Any, workspace: Workspace) -> None:
    machine("NVIDIA B200, 10.0, 580.82.07, 183359, 183000")
    (found,) = [check for check in failing(planned(workspace, "0.5.0"), workspace) if check.name == "GPU"]
    assert "NVIDIA B200 is newer than TensorRT-LLM 0.5.0" in found.found
    assert found.remedy == "--release 0.17.0"
    assert failing(planned(workspace, "0.17.0"), workspace) == []


@pytest.mark.parametrize("chip", ["NVIDIA B300, 10.3", "NVIDIA GB10, 12.1"])
def test_a_chip_between_those_that_a_release_knows_is_refused(machine: Any, workspace: Workspace, chip: str) -> None:
    machine(f"{chip}, 580.82.07, 183359, 183000")
    (found,) = [check for check in failing(planned(workspace, "0.17.0"), workspace) if check.name == "GPU"]
    assert "builds for 12.0 at most, without 10.3 and 12.1" in found.found
    assert "engine=llmapi" in found.remedy


def test_a_chip_that_is_older_than_upstreams_support_is_refused(machine: Any, workspace: Workspace) -> None:
    machine("Tesla T4, 7.5, 580.82.07, 15360, 15000")
    (found,) = [check for check in failing(planned(workspace, "0.17.0"), workspace) if check.name == "GPU"]
    assert "upstream supports 8.0 (Ampere) or newer" in found.found
    assert found.remedy == "--set engine=transformers"


def test_more_ranks_than_gpus(machine: Any, workspace: Workspace) -> None:
    machine(H100, H100)
    (found,) = [check for check in failing(planned(workspace, tp_size=4), workspace) if check.name == "GPU"]
    assert "4 GPUs, but there are 2" in found.found


@pytest.mark.parametrize(
    ("fault", "token", "said", "remedy"),
    [
        ("", "", "org/model may be fetched", ""),
        ("401", "", "no token is set", "HF_TOKEN"),
        ("401", TOKEN, "not valid", "HF_TOKEN"),
        ("gated", TOKEN, "(403)", "accept them"),
        ("gated-stranger", "", "accepted its terms, and no token is set", "HF_TOKEN"),
        ("gated-stranger", TOKEN, "the token in use is not valid", "HF_TOKEN"),
        ("no-revision", TOKEN, "no revision", "revisions"),
    ],
)
def test_the_hub_is_asked_before_anything_is_fetched(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, fault: str, token: str, said: str, remedy: str
) -> None:
    hub = FakeHub({"config.json": b"{}"})
    hub.fault = fault
    with serve(hub) as endpoint:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HF_TOKEN", token)
        plan = planned(workspace, model="hub:org/model@abc")
        (found,) = [check for check in gpu_checks(plan, "compose", workspace) if check.name == "model hub"]
    assert said in found.found
    assert remedy in found.remedy
    assert TOKEN not in found.found + found.remedy


def test_a_hub_that_does_not_answer_is_told_from_one_that_refuses(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (found,) = [c for c in failing(planned(workspace, model="hub:org/model"), workspace) if c.name == "model hub"]
    assert "the hub does not answer" in found.found


def test_an_engine_of_another_chip_is_refused(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(workspace, model="shipped:tiny-gpt2")
    build = plan.image_builds[0]
    folder = build.locate(workspace)
    folder.mkdir(parents=True)
    for name in ("config.json", "rank0.engine"):
        (folder / name).write_text("x")
    manifest = {
        "key": build.key,
        "options": dict(build.options),
        "hardware": asdict(GpuInfo("NVIDIA A100", "8.0", "535", "")),
        "weights": build.source.identity(workspace),
        "files": measure(folder, "manifest.json"),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr(images, "image_digest", lambda image: "")
    (found,) = [check for check in failing(plan, workspace) if check.name == "engine"]
    assert "built for another target (NVIDIA A100)" in found.found
    assert build.key in found.remedy


def test_doctor_prints_the_checklist_with_its_remedies(
    machine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(A100)
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(docker_engine, "engine", lambda: Engine("runc"))
    monkeypatch.setattr(docker_engine, "containers", lambda *wanted: [])
    arguments = ["doctor", "inflight-batching", "--profile", "gpu", "--set", "engine=tensorrt-llm"]
    arguments += ["--set", "quantization=fp8"]
    done = CliRunner().invoke(cli, arguments)
    is_lab_error(done.exception, "machine-not-ready")
    for text in ("NVIDIA driver", "535.104.05", "NVIDIA Container Toolkit", "does not support fp8", "GPU memory"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("capability", "settings", "state", "said"),
    [
        ("9.0", {}, "ok", "bf16 and fp16"),
        ("7.5", {}, "ok", "fp16: bf16 needs compute capability 8.0"),
        ("7.0", {}, "fail", "compute capability 7.0"),
        ("7.0", {"engine": "transformers"}, "ok", "compute capability 7.0"),
    ],
)
def test_the_chip_is_told_with_its_precisions_and_must_be_one_of_vllms(
    machine: Any, workspace: Workspace, capability: str, settings: dict[str, Any], state: str, said: str
) -> None:
    machine(H100.replace("9.0", capability))
    (found,) = [one for one in gpu_checks(planned(workspace, "", **settings), "local", workspace) if one.name == "GPU"]
    assert found.state == state and said in found.found


def test_how_many_tokens_of_kv_cache_the_memory_is_for_is_told_before_anything_is_made(
    machine: Any, workspace: Workspace
) -> None:
    machine(H100)
    plan = planned(workspace, "", kv_cache_memory_mib=1024)
    (found,) = [one for one in gpu_checks(plan, "local", workspace) if one.name == "GPU memory"]
    assert "the KV cache of 2,048 tokens 1.1" in found.found  # 2 x 32 layers x 4,096 numbers of 2 bytes each
