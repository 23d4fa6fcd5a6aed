"""The gpu profile's checklist on room: the GPU's memory, the containers' shared memory, the disk."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpu_machine import FULL, failing, machine_fixture, planned, workspace_fixture

from labctl.artifacts import weights
from labctl.doctor import gpu_memory
from labctl.doctor.gpu import gpu_checks
from labctl.doctor.gpu_memory import MemoryShape
from labctl.workspace import Workspace

ROOT = Path(__file__).resolve().parents[2]
__all__ = ("machine_fixture", "workspace_fixture")


def shape(source: weights.Source, workspace: Workspace) -> gpu_memory.MemoryShape:
    known = gpu_memory.MemoryShape.of(source, workspace)
    assert known
    return known


def test_too_little_memory_names_what_is_needed(machine: Any, workspace: Workspace) -> None:
    machine(FULL)
    (found,) = [check for check in failing(planned(workspace), workspace) if check.name == "GPU memory"]
    assert "9.4 of 85.5 GB free" in found.found
    assert "needed 16.4 GB (the engine and its smallest KV cache 16.4)" in found.found


def test_hugging_faces_models_beside_the_engine_need_their_room_too(machine: Any, workspace: Workspace) -> None:
    machine("NVIDIA A100-SXM4-40GB, 8.0, 535.104.05, 40960, 40000")
    (found,) = [check for check in failing(planned(workspace, stack="llama"), workspace) if check.name == "GPU memory"]
    assert "2 models of Hugging Face's library 28.0" in found.found
    assert failing(planned(workspace, stack="inflight-batching"), workspace) == []


def test_an_engine_of_hugging_faces_library_needs_its_weights_and_its_cache(machine: Any, workspace: Workspace) -> None:
    machine(FULL)
    plan = planned(workspace, "", engine="transformers", kv_cache_memory_mib=1024)
    (found,) = [check for check in failing(plan, workspace) if check.name == "GPU memory"]
    assert "1 model of Hugging Face's library 14.0 + the KV cache of 2,048 tokens 1.1" in found.found
    assert "kv_cache_memory_mib" in found.remedy
    assert "tp_size" not in found.remedy


def test_the_llm_apis_cache_and_graphs_are_counted_beside_its_weights(machine: Any, workspace: Workspace) -> None:
    machine("NVIDIA A100-SXM4-40GB, 8.0, 580.82.07, 40960, 40000")
    plan = planned(workspace, "1.2.1", stack="llama", engine="llmapi")
    (found,) = [check for check in failing(plan, workspace) if check.name == "GPU memory"]
    assert "3 models of Hugging Face's library 41.9 + the LLM API's KV cache and CUDA graphs 6.3" in found.found


def test_a_shape_of_today_takes_a_quarter_of_the_cache(workspace: Workspace) -> None:
    old, new = (
        MemoryShape.of(weights.parse_source(f"random:{name}"), workspace) for name in ("llama-2-7b", "llama-3.1-8b")
    )
    assert old and new
    assert new.weights() == pytest.approx(16.06e9, rel=0.001)  # 8.03 billion parameters in 16 bits
    assert old.kv_cache(1024) == 4 * new.kv_cache(1024)


def test_a_build_holds_the_weights_twice_in_the_machines_memory(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=20 * 10**9))
    (found,) = [c for c in gpu_checks(planned(workspace), "compose", workspace) if c.name == "memory"]
    assert (found.state, found.found) == ("warn", "20.0 GB free; loading takes about 27.0 GB")


@pytest.mark.parametrize(("size", "state"), [("2g", "ok"), ("512m", "fail"), ("plenty", "fail"), ("9000g", "warn")])
def test_the_containers_shared_memory_is_held_against_what_the_ranks_and_the_machine_need(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, size: str, state: str
) -> None:
    monkeypatch.setenv("LABS_SHM_SIZE", size)
    (found,) = [c for c in gpu_checks(planned(workspace), "compose", workspace) if c.name == "shared memory"]
    assert found.state == state


def test_a_full_disk_is_found_before_a_build(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=30 * 10**9))
    (found,) = [check for check in failing(planned(workspace), workspace) if check.name == "disk for engines"]
    assert "30.0 GB free" in found.found
    assert "takes about 40 GB" in found.found


NO_STEP = {"max_batch_size": 0, "max_input_len": 0, "max_num_tokens": 0}


def test_llama_7b_with_a_profile_of_64_times_2048_tokens_takes_upstreams_25_gb(workspace: Workspace) -> None:
    options = {"tp_size": 1, "pp_size": 1, "quantization": "none", "max_batch_size": 64, "max_input_len": 2048}
    source = weights.parse_source("random:llama-2-7b")
    whole = shape(source, workspace).engine({**options, "max_num_tokens": 0}, 2560)
    assert whole == pytest.approx(25e9, rel=0.05)
    ours = shape(source, workspace).engine({**options, "max_num_tokens": 8192}, 2560)
    assert ours < 17e9


def test_weights_pass_through_the_machines_memory_which_is_held_against_it(
    machine: Any, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=20 * 10**9))
    (found,) = [c for c in gpu_checks(planned(workspace, stack="llama"), "compose", workspace) if c.name == "memory"]
    assert found.state == "warn"
    assert "loading takes about 27.0 GB" in found.found


def test_two_gpus_need_half_each_and_fp8_half_the_weights(workspace: Workspace) -> None:
    source = weights.parse_source("random:llama-2-7b")

    def need(**changed: Any) -> float:
        options = {"tp_size": 1, "pp_size": 1, "quantization": "none", **NO_STEP, **changed}
        return shape(source, workspace).engine(options, 0) - gpu_memory.OVERHEAD

    assert need() == pytest.approx(2 * 6.74e9, rel=0.01)  # two bytes for each of Llama-2 7B's parameters
    assert need(tp_size=2) == pytest.approx(need() / 2)
    assert need(quantization="fp8") == pytest.approx(need() / 2, rel=0.05)


def test_a_folder_of_weights_tells_its_own_shape(tmp_path: Path, workspace: Workspace) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 1}))
    options = {"tp_size": 1, "pp_size": 1, "quantization": "none", **NO_STEP}
    found = shape(weights.parse_source(str(tmp_path)), workspace).engine(options, 0)
    assert found == gpu_memory.OVERHEAD + 2 * (2 * 32000 * 4096 + 4 * 4096**2 + 3 * 4096 * 11008)
