"""The gpu profile's checklist: every lack is found before anything is made, and says what to do about it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
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
from labctl.catalog import load_catalog
from labctl.cli.main import cli
from labctl.doctor import gpu_memory
from labctl.doctor.gpu import driver, gpu_checks
from labctl.doctor.machine import DoctorCheck
from labctl.labs.run import add_gpus
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.runtimes import docker_engine, images, nvidia
from labctl.runtimes.layers import gpu_layer, require_pytorch
from labctl.runtimes.local import LocalRuntime
from labctl.stack.build import check_machine, refuse_unservable
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labserve import model_shape
from labserve.model_shape import ModelShape
from labserve.vllm.settings import VllmSettings

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
    assert driver(version, 12, trtllm=True).state == state


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


@pytest.fixture
def torch_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let this environment's PyTorch say for which CUDA it is."""

    def says(cuda: str) -> None:
        folder = tmp_path / "torch"
        folder.mkdir(exist_ok=True)
        (folder / "version.py").write_text(f"__version__ = '2.9.1'\ncuda: Optional[str] = {cuda}\nhip = None\n")
        spec = SimpleNamespace(origin=str(folder / "__init__.py"))
        monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)

    return says


@pytest.mark.parametrize(
    ("cuda", "capability", "driver", "code"),
    [
        ("None", "9.0", "580.82.07", "torch-without-cuda"),  # as on ARM, where the version says nothing of it
        ("None", "9.0", "550.54.15", "torch-without-cuda"),  # the layer for CUDA 12 is the way out
        ("None", "7.0", "580.82.07", "torch-without-cuda"),
        ("None", "9.0", "470.256.02", "nvidia-driver-too-old"),
        ("None", "6.1", "580.82.07", "gpu-too-old"),
        ("'13.0'", "9.0", "550.54.15", "nvidia-driver-too-old"),
        ("'13.0'", "9.0", "580.82.07", ""),
        ("'13.0'", "7.0", "580.82.07", "gpu-too-old"),
        ("'12.8'", "9.0", "550.54.15", ""),
        ("'12.8'", "7.0", "550.54.15", ""),
    ],
)
@pytest.mark.parametrize("layer", [False, True])
def test_the_local_runtime_needs_a_pytorch_that_this_gpu_and_driver_run(
    machine: Any,
    workspace: Workspace,
    torch_says: Callable[[str], None],
    cuda: str,
    capability: str,
    driver: str,
    code: str,
    layer: bool,
) -> None:
    machine(f"NVIDIA H100, {capability}, {driver}, 81559, 81000")
    torch_says(cuda)
    if layer:
        gpu_layer(workspace).path.mkdir(parents=True)
        code = code if code != "torch-without-cuda" else ""
    with lab_error(code) if code else nullcontext():
        require_pytorch(workspace)


@pytest.mark.parametrize("packages", ["no layer", "layer"])
@pytest.mark.parametrize("stack", ["iterative", "two-schedulers"])
def test_a_driver_before_cuda_12_is_never_called_ok_on_the_local_runtime(
    machine: Any, workspace: Workspace, torch_says: Callable[[str], None], stack: str, packages: str
) -> None:
    machine("NVIDIA GeForce RTX 4090, 8.9, 520.61.05, 24564, 24100")
    torch_says("None")
    if packages == "layer":
        gpu_layer(workspace).path.mkdir(parents=True)
    engine = {"engine": "vllm"} if stack == "two-schedulers" else {}
    check = found("NVIDIA driver", planned(workspace, stack, **engine), workspace, "local")
    assert check.state == "fail" and "580.65.06" in check.remedy and "LD_LIBRARY_PATH" in check.remedy
    assert gpu_checks(None, "local", workspace)[0].state == "fail"


def test_nvidias_package_for_older_drivers_counts_where_the_library_path_names_it(
    machine: Any, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "compat"
    folder.mkdir()
    (folder / "libcuda.so.580.82.07").touch()
    (folder / "libcuda.so.1").symlink_to("libcuda.so.580.82.07")
    machine("Tesla T4, 7.5, 550.54.15, 15360, 15100")
    plan = planned(workspace, "two-schedulers", engine="vllm")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{folder}")
    assert found("NVIDIA driver", plan, workspace, "local").found == "580.82.07"
    assert found("NVIDIA driver", plan, workspace).state == "fail"  # a container has libraries of its own
    machine("NVIDIA GeForce RTX 4090, 8.9, 550.54.15, 24564, 24100")
    assert "CUDA 12 is used" in found("NVIDIA driver", plan, workspace, "local").found


def test_a_compiler_and_pythons_headers_are_asked_for_where_vllm_runs_as_a_process(
    machine: Any, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    plan = planned(workspace, "two-schedulers", engine="vllm")
    check = found("C compiler", plan, workspace, "local")
    assert check.state == "warn" and "gcc" in check.remedy
    monkeypatch.setenv("CC", "cc")
    assert found("C compiler", plan, workspace, "local").state == "ok"
    (tmp_path / "Python.h").unlink()
    assert found("C compiler", plan, workspace, "local").state == "warn"
    rows = [*gpu_checks(plan, "compose", workspace), *gpu_checks(planned(workspace, "iterative"), "local", workspace)]
    assert "C compiler" not in [row.name for row in rows]


@pytest.mark.parametrize(
    "line",
    [
        "NVIDIA GB10, 12.1, 580.82.07, [N/A], [N/A]",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb, 8.0, 580.82.07, [Insufficient Permissions], [Insufficient Permissions]",
        H100.replace("81559, 81000", "N/A, N/A"),
    ],
)
def test_memory_that_the_driver_does_not_tell_is_a_warning_and_no_crash(
    machine: Any, workspace: Workspace, line: str
) -> None:
    machine(line)
    assert nvidia.gpus()[0].free is None
    check = found("GPU memory", planned(workspace, engine="vllm"), workspace)
    assert check.state == "warn"
    assert "the driver does not say how much is free; needed 17.3 GB" in check.found


def test_the_checklist_asks_the_driver_of_the_chosen_gpus_alone(machine: Any, tmp_path: Path) -> None:
    (tmp_path / "bin" / "nvidia-smi").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho "{H100}"\n')
    (whole,) = nvidia.gpus("1")
    assert "--id=1" in (tmp_path / "asked").read_text()
    assert whole.free
    (slice_of_it,) = nvidia.gpus("MIG-5c89852c")
    assert "--id" not in (tmp_path / "asked").read_text()
    assert (slice_of_it.name, slice_of_it.free) == (whole.name, None)


@pytest.mark.parametrize(
    ("named", "ranks", "replica", "own"),
    [
        (None, 1, None, None),  # the driver's first one
        (None, 2, None, None),
        ("2,3", 1, None, "2"),
        ("2,3", 2, None, "2,3"),
        (None, 1, 1, "0"),
        (None, 2, 2, "2,3"),
        ("4,5,GPU-6,7", 2, 2, "GPU-6,7"),
    ],
)
def test_each_server_has_gpus_of_its_own(
    machine: Any, named: str | None, ranks: int, replica: int | None, own: str | None
) -> None:
    machine(H100, H100, H100, H100)
    assert nvidia.gpus_of_server(named, ranks, replica) == own


@pytest.mark.parametrize(("named", "ranks", "replica"), [("1", 2, None), (None, 1, 3), ("0,1,2", 2, 2)])
def test_more_gpus_than_there_are_is_an_error(machine: Any, named: str | None, ranks: int, replica: int | None) -> None:
    machine(H100, H100)
    with lab_error("gpus-too-few"):
        nvidia.gpus_of_server(named, ranks, replica)


@pytest.mark.parametrize(("count", "state"), [(1, "fail"), (2, "ok")])
def test_an_engine_in_two_ranks_needs_two_gpus_of_half_the_size(
    machine: Any, workspace: Workspace, count: int, state: str
) -> None:
    """Half of 13.5 GB of weights and of eight sequences of 4,096 tokens of 0.5 MiB, and 1.7 GB: 17.0 of 24 GB."""
    machine(*["NVIDIA GeForce RTX 4090, 8.9, 580.82.07, 24564, 20000"] * count)
    plan = planned(workspace, engine="vllm", tp_size=2)
    assert found("GPUs", plan, workspace).state == state
    assert "needed 17.0 GB" in found("GPU memory", plan, workspace).found


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
        (
            FULL,
            VLLM,
            "9.4 of 85.5 GB free; needed 16.3 GB (the weights 13.5 + CUDA, graphs and activations 1.7 + the KV cache "
            "of 2,048 tokens 1.1)",
        ),
        # This engine has a block for each sequence beside them.
        (
            FULL,
            {"engine": "transformers", **SMALL},
            "the weights 13.5 + CUDA, graphs and activations 0.5 + the KV cache of 2,048 tokens 1.2",
        ),
        # The bound in tokens holds, and not all that could be set aside.
        (
            A100_40,
            {"stack": "llama", "engine": "vllm"},
            "3 copies of the weights 40.4 + CUDA, graphs and activations 2.7 + the KV cache of 8,192 tokens 4.3",
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
    assert said in check.found and "--set " in check.remedy


@pytest.mark.parametrize(
    ("free", "stack", "remedy"),
    [
        (15100, "two-schedulers", ""),  # a tiny model with a cache of 320 tokens, on a T4
        (7900, "two-schedulers", ""),
        (45500, "llama", ""),
        (24100, "inflight-batching", ""),
        (15100, "inflight-batching", "--set model=random:llama-100m"),
        (7900, "llama", "--set model=random:llama-100m"),
    ],
)
def test_what_fits_is_taken_and_what_does_not_is_refused_with_settings_that_do(
    machine: Any, workspace: Workspace, free: int, stack: str, remedy: str
) -> None:
    machine(f"NVIDIA L40S, 8.9, 580.82.07, 49140, {free}")
    assert (
        found("GPU memory", planned(workspace, stack, engine="vllm"), workspace).remedy.partition(", or")[0] == remedy
    )
    fitting = dict(pair.split("=") for pair in remedy.replace("--set ", "").split())
    plan = planned(workspace, stack, engine="vllm", **fitting)
    assert found("GPU memory", plan, workspace).state == "ok"


@pytest.mark.parametrize(
    "words", [{}, {"exact": "true"}, {"kv_cache_dtype": "fp8"}, {"block_size": "64"}, {"tp_size": "2"}]
)
def test_the_checklist_and_the_server_count_the_same_cache(
    workspace: Workspace, tmp_path: Path, words: dict[str, str]
) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 32}')
    given = {"kv_cache_memory_mib": "2048", "max_num_tokens": "4096", "engine": "vllm", **words}
    there = ModelShape(vocabulary=32000, context=4096, token_values=2 * 32 * 4096, head_dim=128)
    served = VllmSettings.of(lambda name: {**given, "gpt_model_path": str(tmp_path)}.get(name, ""), there, "cuda:0")
    plan = planned(workspace, model="random:llama-2-7b", kv_cache_free_gpu_mem_fraction=0.9, **given)
    assert shape("random:llama-2-7b", workspace).engine_cache(plan.settings, None) == (
        served.kv.tokens,
        served.arguments["kv_cache_memory_bytes"],
    )


@pytest.mark.parametrize(("free", "tokens"), [(24 * 10**9, 15_136), (80 * 10**9, 32_768), (17 * 10**9, 3_104)])
def test_without_a_size_the_cache_takes_what_is_free_and_no_more_than_the_batch_fills(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, tokens: int
) -> None:
    """Nine tenths of what 13.5 GB of weights and 1.7 GB leave, in blocks of 32 tokens of 0.5 MiB; eight of 4,096."""
    weights_size = shape("random:llama-2-7b", workspace).weights
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(weights_size)
    monkeypatch.setattr(model_shape, "_free_bytes", lambda device: free)
    given = {"gpt_model_path": str(tmp_path), "max_num_sequences": "8", "engine": "vllm", "max_num_tokens": "4096"}
    there = ModelShape(vocabulary=32000, context=4096, token_values=2 * 32 * 4096, head_dim=128)
    served = VllmSettings.of(lambda name: given.get(name, ""), there, "cuda:0")
    assert served.kv.tokens == tokens
    settings = planned(workspace, engine="vllm").settings
    room = free - weights_size - 17 * 10**8
    counted, _ = shape("random:llama-2-7b", workspace).engine_cache(settings, room)
    assert counted == max(tokens, 4096), "the checklist asks for one longest request"


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
        ("7.0", {"engine": "vllm"}, "ok", "compute capability 7.0"),  # of the build for CUDA 12
        ("6.1", {"engine": "vllm"}, "fail", "compute capability 6.1"),
        ("6.1", {"engine": "transformers"}, "fail", "compute capability 7.5"),
    ],
)
def test_the_chip_is_told_with_its_precisions_and_must_have_kernels_for_it(
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
    monkeypatch.setattr(images, "image_digest", lambda image: None)
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
    vllm = {**known, "engine": "vllm"}
    assert old.engine_cache(vllm, None) == (1024, 4 * new.engine_cache(vllm, None)[1])


@pytest.mark.parametrize("stack", ["inflight-batching", "llama"])
def test_weights_pass_through_the_machines_memory_twice(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, stack: str
) -> None:
    monkeypatch.setattr("labctl.doctor.gpu.available_memory", lambda: 20 * 10**9)
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


@pytest.mark.parametrize(
    ("quantized", "state"), [({"quantization_config": {"quant_method": "awq", "bits": 4}}, "ok"), ({}, "fail")]
)
def test_quantized_weights_take_their_files_and_fit_a_card_that_16_bits_do_not(
    machine: Any, workspace: Workspace, tmp_path: Path, quantized: dict[str, Any], state: str
) -> None:
    """Four bits of Llama-2 7B are 3.9 GB, beside 1.7 GB and 0.5 GB of cache; in 16 bits they are 13.5 GB."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps({"model_type": "llama", "max_position_embeddings": 1024, **quantized})
    )
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(39 * 10**8)
    machine("NVIDIA GeForce RTX 4060, 8.9, 580.82.07, 8188, 7900")
    check = found("GPU memory", planned(workspace, engine="vllm", model=str(model)), workspace)
    assert check.state == state, check


# -- what it means for a start, and for a result -----------------------------------------------------------------------


COMPOSE: Any = SimpleNamespace(name="compose")


def test_fault_22_what_is_missing_stops_a_start_before_anything_is_made(machine: Any, workspace: Workspace) -> None:
    machine(FULL)
    session = Session(workspace, load_catalog(workspace), Silent())
    with lab_error("check-failed", "9.4 of 85.5 GB", "model=random:llama-100m"):
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
    plan = make_plan(workspace, lab, name, Options("gpu", settings))
    with lab_error("image-needed", remedy):
        refuse_unservable(plan, LocalRuntime(workspace), workspace)
