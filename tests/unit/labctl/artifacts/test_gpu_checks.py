"""The gpu profile's checklist: every lack is found before anything is made, and says what to do about it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from fake_hub import FakeHub, serve
from gpu_machine import A100, FULL, H100, TOKEN, Engine, failing, machine_fixture, planned, workspace_fixture
from lab_errors import is_lab_error, lab_error
from noting import Noting

from labbuild.protocol import GpuInfo
from labctl.artifacts import weights
from labctl.artifacts.store import measure
from labctl.cli.main import cli
from labctl.doctor import gpu_memory
from labctl.doctor.gpu import driver, gpu_checks
from labctl.doctor.machine import DoctorCheck
from labctl.labs.run import add_gpus
from labctl.listener import Silent
from labctl.manifest.catalog import load_catalog
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import docker_engine, images, nvidia, wheel
from labctl.runtimes.local import LocalRuntime
from labctl.stack.session import Session
from labctl.stack.up import check_machine, refuse_unservable
from labctl.workspace import Workspace

__all__ = ("machine_fixture", "workspace_fixture")
A100_40 = "NVIDIA A100-SXM4-40GB, 8.0, 570.86.10, 40960, 40000"
B200, B300, GB10, T4 = (
    f"NVIDIA {name}, 580.82.07, 183359, 183000" for name in ("B200, 10.0", "B300, 10.3", "GB10, 12.1", "T4, 7.5")
)


def found(name: str, plan: Plan, workspace: Workspace, runtime: str = "compose") -> DoctorCheck:
    """The check of that name."""
    (check,) = [check for check in gpu_checks(plan, runtime, workspace) if check.name == name]
    return check


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


def test_without_a_driver_one_is_asked_for(machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    check = found("NVIDIA driver", planned(workspace), workspace)
    assert (check.state, "there is no NVIDIA driver here" in check.found) == ("fail", True)
    assert "install the driver" in check.remedy


def test_a_driver_that_does_not_work_says_why(machine: Any, workspace: Workspace) -> None:
    machine("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.", status=9)
    assert "could not communicate" in failing(planned(workspace), workspace)[0].found


def test_an_answer_that_cannot_be_read_is_an_error_and_no_crash(machine: Any) -> None:
    machine("No devices were found")
    with lab_error("nvidia-answer-unreadable"):
        nvidia.gpus()


@pytest.mark.parametrize(("version", "state"), [("570.86.10", "ok"), ("535.104.05", "warn"), ("470.223.02", "fail")])
def test_the_driver_is_held_against_the_images_cuda(version: str, state: str) -> None:
    assert driver(version, trtllm=True).state == state


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
    plan = planned(workspace, "iterative")
    check = found("NVIDIA driver", plan, workspace)
    assert check.state == "fail" and "570.86.10 (CUDA 13 needs 580.65.06 or newer)" in check.found
    native = planned(workspace, "sequence-batcher")  # there only Triton's own backends compute on the GPU
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
    check = found("GPU memory", planned(workspace, engine="vllm"), workspace)
    assert check.state == "warn"
    assert "the driver does not say how much is free; needed 29.4 GB" in check.found


def test_the_checklist_asks_the_driver_of_the_chosen_gpus_alone(machine: Any, tmp_path: Path) -> None:
    (tmp_path / "bin" / "nvidia-smi").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "{H100}"\n')
    (whole,) = nvidia.gpus("1")
    assert "--id=1" in (tmp_path / "asked").read_text()
    assert whole.free
    (slice_of_it,) = nvidia.gpus("MIG-5c89852c")
    assert "--id" not in (tmp_path / "asked").read_text()
    assert (slice_of_it.name, slice_of_it.free) == (whole.name, None)


def test_fault_22_no_container_toolkit(machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_engine, "engine", lambda: Engine("runc"))
    check = found("container toolkit", planned(workspace), workspace)
    assert (check.state, "no NVIDIA runtime" in check.found) == ("fail", True)
    assert "NVIDIA Container Toolkit" in check.remedy


@pytest.mark.parametrize(
    ("gpu", "asked", "said", "remedy"),
    [
        (A100, {"quantization": "fp8"}, "does not support fp8", "quantization=none"),
        (B300, {}, "builds for 12.0 at most, without 10.3 and 12.1", "engine=vllm"),
        (GB10, {}, "builds for 12.0 at most, without 10.3 and 12.1", "engine=vllm"),
        (T4, {}, "upstream supports 8.0 (Ampere) or newer", "--set engine=transformers"),
    ],
)
def test_chips_that_cannot_serve_it_are_refused(
    machine: Any, workspace: Workspace, gpu: str, asked: dict[str, Any], said: str, remedy: str
) -> None:
    machine(gpu)
    check = found("GPU", planned(workspace, **asked), workspace)
    assert check.state == "fail"
    assert said in check.found and remedy in check.remedy


SMALL = {"kv_cache_memory_mib": 1024, "kv_cache_free_gpu_mem_fraction": 1.0}
VLLM = {"engine": "vllm", **SMALL}


@pytest.mark.parametrize(
    ("gpu", "asked", "said"),
    [
        (FULL, VLLM, "9.4 of 85.5 GB free; needed 15.1 GB (the weights 14.0 + the KV cache of 2,048 tokens 1.1)"),
        (FULL, {"engine": "transformers", **SMALL}, "the weights 14.0 + the KV cache of 2,048 tokens 1.1"),
        # The bound in tokens holds, and not all that could be set aside.
        (
            A100_40,
            {"stack": "llama", "engine": "vllm"},
            "3 copies of the weights 41.9 + the KV cache of 8,192 tokens 4.3",
        ),
        (FULL, {**VLLM, "kv_cache_memory_mib": 1}, "not one block of 32 tokens"),
    ],
)
def test_too_little_memory_names_what_needs_it(
    machine: Any, workspace: Workspace, gpu: str, asked: dict[str, Any], said: str
) -> None:
    machine(gpu)
    check = found("GPU memory", planned(workspace, **asked), workspace)
    assert check.state == "fail"
    assert said in check.found and "kv_cache_memory_mib" in check.remedy


@pytest.mark.parametrize("gpu", [B200, A100_40])
def test_a_chip_that_tensorrt_llm_knows_is_taken(machine: Any, workspace: Workspace, gpu: str) -> None:
    machine(gpu)
    assert failing(planned(workspace), workspace) == []
    assert "is not known beforehand" in found("GPU memory", planned(workspace), workspace).found


@pytest.mark.parametrize(
    ("capability", "settings", "state", "said"),
    [
        ("9.0", {"engine": "vllm"}, "ok", "bf16 and fp16"),
        ("7.5", {"engine": "vllm"}, "ok", "fp16: bf16 needs compute capability 8.0"),
        ("7.0", {"engine": "vllm"}, "fail", "compute capability 7.0"),
        ("7.0", {"engine": "transformers"}, "ok", "compute capability 7.0"),
    ],
)
def test_the_chip_is_told_with_its_precisions_and_must_be_one_of_vllms(
    machine: Any, workspace: Workspace, capability: str, settings: dict[str, Any], state: str, said: str
) -> None:
    machine(H100.replace("9.0", capability))
    check = found("GPU", planned(workspace, **settings), workspace, "local")
    assert check.state == state and said in check.found


@pytest.mark.parametrize(
    ("fault", "token", "said", "remedy"),
    [
        ("", "", "org/model may be fetched", ""),
        ("401", "", "no token is set", "HF_TOKEN"),
        ("401", TOKEN, "not valid", "HF_TOKEN"),
        ("gated", TOKEN, "(403)", "accept them"),
        ("gated-stranger", "", "accepted first, and no token is set", "HF_TOKEN"),
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
        check = found("model hub", plan, workspace)
    assert said in check.found
    assert remedy in check.remedy
    assert TOKEN not in check.found + check.remedy


def test_a_hub_that_does_not_answer_is_told_from_one_that_refuses(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    check = found("model hub", planned(workspace, model="hub:org/model"), workspace)
    assert (check.state, "the hub does not answer" in check.found) == ("fail", True)


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
    check = found("engine", plan, workspace)
    assert (check.state, "built for another target (NVIDIA A100)" in check.found) == ("fail", True)
    assert build.key in check.remedy


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
    for text in ("NVIDIA driver", "570.86.10", "NVIDIA Container Toolkit", "does not support fp8", "GPU memory"):
        assert text in done.stdout


# -- room --------------------------------------------------------------------------------------------------------------


def shape(source: str, workspace: Workspace) -> gpu_memory.MemoryShape:
    known = gpu_memory.MemoryShape.of(weights.parse_source(source), workspace)
    assert known
    return known


def test_a_shape_of_today_takes_a_quarter_of_the_cache(workspace: Workspace) -> None:
    old, new = (shape(f"random:{name}", workspace) for name in ("llama-2-7b", "llama-3.1-8b"))
    assert new.weights == pytest.approx(16.06e9, rel=0.001)  # 8.03 billion parameters in 16 bits
    known = {"max_tokens_in_paged_kv_cache": 1024, "kv_cache_free_gpu_mem_fraction": 0.9, "kv_cache_memory_mib": 16384}
    assert old.kv_cache(known) == (1024, 4 * new.kv_cache(known)[1])


@pytest.mark.parametrize("stack", ["inflight-batching", "llama"])
def test_weights_pass_through_the_machines_memory_twice(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, stack: str
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=20 * 10**9))
    check = found("memory", planned(workspace, stack=stack), workspace)
    assert (check.state, check.found) == ("warn", "20.0 GB free; loading takes about 27.0 GB")


@pytest.mark.parametrize(("size", "state"), [("2g", "ok"), ("512m", "fail"), ("plenty", "fail"), ("9000g", "warn")])
def test_the_containers_shared_memory_is_held_against_what_the_server_and_the_machine_need(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, size: str, state: str
) -> None:
    monkeypatch.setenv("LABS_SHM_SIZE", size)
    assert found("shared memory", planned(workspace), workspace).state == state


def test_a_full_disk_is_found_before_a_build(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=30 * 10**9))
    check = found("disk for engines", planned(workspace), workspace)
    assert check.state == "fail"
    assert "30.0 GB free" in check.found and "takes about 40 GB" in check.found


def test_a_folder_of_weights_tells_its_own_shape(tmp_path: Path, workspace: Workspace) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1}))
    assert shape(str(tmp_path), workspace).weights == 2 * (2 * 32000 * 4096 + 4 * 4096**2 + 3 * 4096 * 11008)


# -- what it means for a start, and for a result -----------------------------------------------------------------------


COMPOSE: Any = SimpleNamespace(name="compose")


def test_fault_22_what_is_missing_stops_a_start_before_anything_is_made(machine: Any, workspace: Workspace) -> None:
    machine(FULL)
    session = Session(workspace, load_catalog(workspace), Silent())
    with lab_error("check-failed", "9.4 of 85.5 GB", "kv_cache_memory_mib"):
        check_machine(session, planned(workspace, engine="transformers"), SimpleNamespace(name="local"))


def test_what_may_be_trouble_is_told_before_a_start_goes_on(machine: Any, workspace: Workspace) -> None:
    listener = Noting()
    machine(A100.replace("570.86.10", "535.104.05"))
    check_machine(Session(workspace, load_catalog(workspace), listener), planned(workspace), COMPOSE)
    assert any("TensorRT-LLM 0.17.0 is made for CUDA 12.8, driver 570.86" in text for text in listener.notes)


def test_a_result_keeps_the_gpus_and_the_release_that_it_was_measured_on(machine: Any) -> None:
    result = {"settings": {"engine": "tensorrt-llm"}, "machine": {"cores": 8}, "metrics": {}}
    kept = add_gpus(result, Options("gpu"))
    (gpu,) = kept["machine"]["gpus"]
    assert (kept["machine"]["cores"], kept["settings"]["release"]) == (8, "0.17.0")
    assert (gpu["name"], gpu["driver"]) == ("NVIDIA H100 80GB HBM3", "570.86.10")
    assert "release" not in add_gpus({"settings": {}, "machine": {}}, Options("gpu"))["settings"]


@pytest.mark.parametrize(
    ("stack", "settings", "remedy"),
    [("inflight-batching", {"engine": "tensorrt-llm"}, ""), ("sequence-batcher", {}, "--set backends=python")],
)
def test_what_only_nvidias_image_serves_is_refused_on_the_local_runtime(
    workspace: Workspace, stack: str, settings: dict[str, Any], remedy: str
) -> None:
    lab, name = load_catalog(workspace).stack(stack)
    plan = make_plan(workspace, lab, name, Options("gpu", settings), str)
    with lab_error("image-needed", remedy):
        refuse_unservable(plan, LocalRuntime(workspace), workspace)
