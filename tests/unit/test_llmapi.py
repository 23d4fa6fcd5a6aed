"""The LLM API: no engine, model.yaml as strict as config.pbtxt, and what means nothing there refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from machinery import ROOT

from labbuild.releases import LLM_API_RELEASE, release
from labctl.cli.main import cli
from labkit.errors import LabError

# A folder of models with upstream's contract, in our words.
CONFIG = """
name: "tensorrt_llm" backend: "python"
input { name: "text_input" data_type: TYPE_STRING dims: -1 }
input { name: "sampling_param_max_tokens" data_type: TYPE_INT32 dims: 1 optional: true }
input { name: "streaming" data_type: TYPE_BOOL dims: 1 optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
"""
YAML = """
model: somebody/else
backend: pytorch
pytorch_backend_config: {use_cuda_graph: false}
triton_config: {decoupled: true}
"""


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))
    model = tmp_path / "all_models" / "llmapi" / "tensorrt_llm"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "1" / "model.yaml").write_text(YAML)
    (model / "1" / "model.py").write_text("# upstream's\n")
    return tmp_path


def ran(command: str, *arguments: str) -> Any:
    done = CliRunner().invoke(cli, [*command.split(), "--profile", "gpu", "--set", "engine=llmapi", *arguments])
    if isinstance(done.exception, LabError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done


@pytest.mark.parametrize("name", ["", "1.2.1"])
def test_a_release_writes_its_model_yaml_over_upstreams_and_leaves_the_rest(workspace: Path, name: str) -> None:
    out = workspace / "out"
    ran(
        "render inflight-batching",
        "--release",
        name,
        "--templates",
        str(workspace),
        "--output",
        str(out),
        "--set",
        "tp_size=2",
        "--set",
        "max_tokens_in_paged_kv_cache=4096",
        "--set",
        "max_num_sequences=8",
        "--set",
        "enable_chunked_context=true",
        "--set",
        "kv_cache_dtype=fp8",
    )
    found = yaml.safe_load((out / "tensorrt_llm/1/model.yaml").read_text())
    assert found["model"].startswith("/labs/cache/weights/")
    assert found["tensor_parallel_size"] == 2
    # Upstream reuses the KV cache unless it is told otherwise (TensorRT-LLM, llmapi/llm_args.py, KvCacheConfig).
    cache = {"free_gpu_memory_fraction": 0.9, "max_tokens": 4096, "enable_block_reuse": False, "dtype": "fp8"}
    assert (found["max_batch_size"], found["enable_chunked_prefill"], found["return_perf_metrics"]) == (8, True, True)
    assert "max_num_tokens" not in found  # empty is the LLM API's own default
    assert found["kv_cache_config"] == cache
    assert found["scheduler_config"] == {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}
    assert found["triton_config"] == {"decoupled": False, "max_batch_size": 0}
    assert found["pytorch_backend_config"] == {"use_cuda_graph": False}


def test_a_whole_checkout_of_upstreams_gives_the_llm_apis_own_family(workspace: Path) -> None:
    other = workspace / "all_models" / "inflight_batcher_llm" / "tensorrt_llm"
    other.mkdir(parents=True)
    (other / "config.pbtxt").write_text('name: "tensorrt_llm" backend: "${triton_backend}"')
    out = workspace / "out"
    arguments = ("--release", "1.2.1", "--templates", str(workspace), "--output", str(out))
    ran("render inflight-batching", *arguments, "--set", "enable_kv_cache_reuse=true")
    found = yaml.safe_load((out / "tensorrt_llm/1/model.yaml").read_text())
    assert found["kv_cache_config"]["enable_block_reuse"] is True
    assert "sampling_param_max_tokens" in (out / "tensorrt_llm/config.pbtxt").read_text()


def test_lab_05s_two_policies_are_two_configurations(workspace: Path) -> None:
    found = {}
    for policy in ("guaranteed_no_evict", "max_utilization", "guaranteed_completion"):
        out = workspace / policy
        ran(
            "render inflight-batching",
            "--release",
            "1.2.1",
            "--templates",
            str(workspace),
            "--output",
            str(out),
            "--set",
            f"batch_scheduler_policy={policy}",
        )
        document = yaml.safe_load((out / "tensorrt_llm/1/model.yaml").read_text())
        found[policy] = document["scheduler_config"]["capacity_scheduler_policy"]
    assert list(found.values()) == ["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "GUARANTEED_NO_EVICT"]
    text = ran("run batching --dry-run", "--release", "1.2.1").output
    assert "batch_scheduler_policy is left out" not in text


def test_every_key_and_type_that_it_does_not_take_is_named_at_once() -> None:
    values = {"modle": "x", "tensor_parallel_size": "two", "triton_config.decoupled": 1, "backend": "pytorch"}
    with pytest.raises(LabError, match=r"model\.yaml cannot be written") as caught:
        release("1.2.1").model_yaml(values)
    assert len(caught.value.details) == 3


def test_streaming_over_several_gpus_is_refused_since_their_launcher_would_ignore_it() -> None:
    values = {"tensor_parallel_size": 2, "triton_config.decoupled": True}
    with pytest.raises(LabError) as caught:
        release("1.2.1").model_yaml(values)
    assert "the launcher for several GPUs switches off" in caught.value.details[0]
    assert release("1.2.1").model_yaml({**values, "tensor_parallel_size": 1})


@pytest.mark.parametrize("name", ["", "1.2.1"])
@pytest.mark.parametrize("stack", ["llama", "inflight-batching"])
def test_there_is_no_engine_step_and_the_weights_are_read_offline(stack: str, name: str) -> None:
    found = json.loads(ran(f"up {stack} --dry-run --json", "--release", name).stdout)
    text = "\n".join(" ".join(command["argv"]) for command in found["commands"])
    assert "trtllm-build" not in text
    assert "labctl.artifacts pull random:llama-2-7b" in text
    assert release(name or LLM_API_RELEASE).llmapi.templates in text  # type: ignore[union-attr]
    assert "auto-complete" not in text  # Triton's stays on: the model sets its own decoupled flag


@pytest.mark.parametrize(
    ("stack", "setting", "said"),
    [("inflight-batching", "max_batch_size=8", "max_batch_size"), ("llama", "gpt_model_type=V1", "gpt_model_type")],
)
def test_what_means_nothing_there_is_refused_by_name(stack: str, setting: str, said: str) -> None:
    with pytest.raises(LabError) as caught:
        ran(f"up {stack} --dry-run", "--release", "1.2.1", "--set", setting)
    assert said in str(caught.value.details)


def test_static_batching_and_releases_without_it_are_refused() -> None:
    with pytest.raises(LabError) as caught:
        ran("up static-batching --dry-run", "--release", "1.2.1")
    assert "gpt_model_type=V1: the LLM API of 1.2.1 takes no such key" in caught.value.details
    with pytest.raises(LabError, match=r"TensorRT-LLM 0\.17\.0 is not served by its LLM API"):
        ran("up inflight-batching --dry-run", "--release", "0.17.0")


def test_an_engine_of_a_release_that_has_none_is_refused() -> None:
    with pytest.raises(LabError, match=r"TensorRT-LLM 1\.2\.1 has no engines here"):
        ran("up inflight-batching --dry-run", "--release", "1.2.1", "--set", "engine=tensorrt-llm")


def test_lab_05_leaves_the_static_phase_out_and_runs_the_other() -> None:
    text = ran("run batching --dry-run", "--release", "1.2.1").stdout
    assert text.count("05-batching-policies/client.py") >= 1
    assert "static-batching" not in "".join(line for line in text.splitlines() if line.startswith("  $ "))
