"""engine=vllm on a GPU: NVIDIA's image and backend, its files, its checks, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import text_format
from gpu_machine import H100, machine_fixture, planned, workspace_fixture  # noqa: F401  (fixtures)
from machinery import ROOT
from tritonclient.grpc import model_config_pb2

from labctl import repository, vllm
from labctl.cli.main import cli
from labctl.doctor.gpu import driver, gpu_checks
from labctl.manifest.catalog import load
from labctl.plan import make_plan
from labctl.runtimes.compose_commands import Projects, builds
from labctl.runtimes.record import Choices
from labctl.workspace import Workspace
from labkit.errors import LabError

NEW = H100.replace("550.54.15", "590.48.01")
LARGE, LATE = NEW.replace("81559, 81000", "81559, 79000"), "NVIDIA H100 80GB HBM3, 9.0, 550.54.15, 81559, 81000"


def served(workspace: Workspace, stack: str = "inflight-batching", release: str = "", **settings: Any) -> Any:
    return planned(workspace, release, stack, **settings)


@pytest.mark.parametrize("stack", ["inflight-batching", "llama"])
def test_vllm_serves_the_in_flight_stacks_of_labs_03_and_05_on_a_gpu_unless_another_engine_is_named(
    workspace: Workspace, stack: str
) -> None:
    plan = served(workspace, stack)
    assert plan.settings["engine"] == "vllm"
    assert plan.image == vllm.IMAGE.image
    assert "vllm_model" in plan.stack.models and "tensorrt_llm" not in plan.stack.models
    assert plan.release is None and not [step for step in plan.steps if step.build]
    named = served(workspace, stack, engine="tensorrt-llm")
    assert named.release and "tensorrt_llm" in named.stack.models


def test_a_release_of_tensorrt_llm_is_served_by_it_without_naming_the_engine(workspace: Workspace) -> None:
    assert served(workspace, release="0.17.0").settings["engine"] == "tensorrt-llm"
    with pytest.raises(LabError, match=r"--release 0\.17\.0 does not apply here") as caught:
        served(workspace, release="0.17.0", engine="vllm")
    assert "engine=tensorrt-llm" in caught.value.remedy


def test_static_batching_stays_with_tensorrt_llm_and_says_why_vllm_is_refused(workspace: Workspace) -> None:
    assert served(workspace, "static-batching").settings["engine"] == "tensorrt-llm"
    with pytest.raises(LabError, match="engine=vllm") as caught:
        served(workspace, "static-batching", engine="vllm")
    assert "vLLM has no static batching" in caught.value.why


@pytest.mark.parametrize(
    ("stack", "settings", "why"),
    [
        ("modern", {"engine": "vllm"}, "a door before an ensemble"),
        ("inflight-batching", {"speculation": "prompt_lookup"}, "on the cpu profile alone"),
        ("inflight-batching", {"scheduling": "fair"}, "two orders"),
        ("llama", {"gpt_model_type": "V1"}, "no static batching"),
    ],
)
def test_what_the_backend_or_the_lab_cannot_do_is_refused_by_name(
    workspace: Workspace, stack: str, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(LabError) as caught:
        served(workspace, stack, **settings)
    assert why in caught.value.why


def test_its_model_json_holds_the_labs_settings_as_vllms_arguments(workspace: Workspace, tmp_path: Path) -> None:
    plan = served(
        workspace,
        max_num_sequences=32,
        max_num_tokens=4096,
        enable_chunked_context=True,
        enable_kv_cache_reuse=True,
        max_tokens_in_paged_kv_cache=4096,
        kv_cache_dtype="fp8",
        scheduling="priority",
    )
    repository.render(replace(plan.request, output=tmp_path / "out"))
    folder = tmp_path / "out" / "vllm_model"
    config = text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
    assert config.backend == "vllm"
    assert config.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_MODEL
    found = json.loads((folder / "1" / "model.json").read_text())
    model = found.pop("model")
    assert model == str(workspace.cache / "weights" / Path(model).name)
    assert found == {
        "enforce_eager": True,
        "dtype": "auto",
        "max_num_seqs": 32,
        "max_num_batched_tokens": 4096,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "num_gpu_blocks_override": 129,  # 128 blocks of 32 tokens, and vLLM's null block
        "block_size": 32,
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.9,
        "scheduling_policy": "priority",
    }
    assert plan.server_env["HF_HUB_OFFLINE"] == "1"


def test_an_argument_of_another_name_or_type_is_refused_before_anything_starts() -> None:
    with pytest.raises(LabError, match=r"model\.json cannot be written") as caught:
        vllm.arguments({"max_num_seq": 4, "max_num_seqs": "4", "block_size": 16})
    assert len(caught.value.details) == 2


def test_what_the_backend_does_whatever_is_asked_is_shown_as_in_effect(workspace: Workspace) -> None:
    plan = served(workspace)
    assert plan.effective["batch_scheduler_policy"]["effective"] == "max_utilization"
    assert plan.effective["decoupled_mode"]["effective"] == "true"
    assert not served(workspace, batch_scheduler_policy="max_utilization", decoupled_mode=True).effective


def test_its_image_gets_no_second_pytorch(workspace: Workspace) -> None:
    commands = builds(Projects(workspace), "gpu", vllm.IMAGE.image)
    server = next(command for name, command in commands.items() if "gpu" in name)
    assert server.env["LABS_TRITON_IMAGE"] == vllm.IMAGE.image
    assert not server.env.get("LABS_PACKAGES")


@pytest.mark.parametrize(("version", "state"), [("550.54.15", "fail"), ("580.82.07", "warn"), ("590.48.01", "ok")])
def test_the_driver_is_held_against_the_cuda_of_its_image(version: str, state: str) -> None:
    assert driver(version, vllm.IMAGE).state == state


def test_its_share_of_the_gpus_memory_must_be_free_and_hold_the_weights(machine: Any, workspace: Workspace) -> None:
    machine(NEW)
    checks = {check.name: check for check in gpu_checks(served(workspace), "compose", workspace)}
    assert {check.state for check in checks.values()} == {"ok"}, checks
    assert "vLLM's share of 0.9" in checks["GPU memory"].found
    assert "2g" in checks["shared memory"].found
    tight = gpu_checks(served(workspace, kv_cache_free_gpu_mem_fraction=0.1), "compose", workspace)
    found = next(check for check in tight if check.name == "GPU memory")
    assert found.state == "fail" and "its weights are 13.5 GB" in found.found
    machine(NEW.replace("81000", "40000"))
    taken = next(c for c in gpu_checks(served(workspace), "compose", workspace) if c.name == "GPU memory")
    assert taken.state == "fail" and "needed" in taken.found


def test_lab_05_alone_runs_the_phases_that_vllm_has_and_says_what_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    done = CliRunner().invoke(cli, ["run", "batching", "--profile", "gpu", "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert vllm.IMAGE.image in done.stdout and "trtllm" not in done.stdout
    assert "context-inflight.json" in done.stdout and "context-max-utilization.json" in done.stdout
    assert "phase static is left out: it means nothing with engine=vllm" in done.output
    assert "context-static.json" not in done.stdout


def test_on_a_cpu_nothing_of_it_is_served(tmp_path: Path) -> None:
    workspace = Workspace(ROOT, tmp_path)
    lab, name = load(workspace).stack("inflight-batching")
    plan = make_plan(workspace, lab, name, Choices("cpu", {"engine": "vllm"}), str)
    assert "vllm_model" not in plan.stack.models and plan.image == "" and plan.stack.packages == "vllm"
