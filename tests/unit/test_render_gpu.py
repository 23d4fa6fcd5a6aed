"""`labctl render --profile gpu`: any release, from a folder of its templates and nothing else."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from google.protobuf import text_format
from release_templates import RELEASES, tree
from tritonclient.grpc import model_config_pb2

from labbuild import releases
from labbuild.releases import release
from labctl import repository
from labctl.cli.main import cli
from labctl.manifest.catalog import load
from labctl.plan import make_plan
from labctl.runtimes.record import Choices
from labctl.workspace import Workspace
from labkit.errors import LabError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def render(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``render(stack, release, key=value)``: the rendered configurations, parsed, by model."""
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))

    def run(stack: str, name: str, **settings: Any) -> dict[str, Any]:
        folder, output = tmp_path / f"{name}-templates", tmp_path / "out"
        if not folder.exists():
            tree(folder, name)
        chosen = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        arguments = ["--release", name, "--templates", str(folder), "--output", str(output), *chosen]
        done = CliRunner().invoke(cli, ["render", stack, "--profile", "gpu", *arguments])
        if isinstance(done.exception, LabError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return {
            path.parent.name: text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
            for path in output.glob("*/config.pbtxt")
        }

    return run


def word(config: Any, key: str) -> str:
    return str(config.parameters[key].string_value)


@pytest.mark.parametrize("name", [*RELEASES, "0.17.0.post1"])
def test_in_flight_batching_renders_from_the_templates_alone(render: Any, name: str, tmp_path: Path) -> None:
    configs = render("inflight-batching", name)
    assert set(configs) == {"preprocessing", "tensorrt_llm", "postprocessing", "ensemble"}
    text = (tmp_path / "out" / "tensorrt_llm" / "config.pbtxt").read_text()
    assert "${" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
    assert word(configs["preprocessing"], "tokenizer_dir").startswith("/labs/cache/weights/")
    assert (tmp_path / "out" / "preprocessing" / "1" / "model.py").read_text() == "# upstream's\n"


@pytest.mark.parametrize("name", RELEASES)
def test_static_batching_is_v1_wherever_it_is_served(render: Any, name: str) -> None:
    config = render("static-batching", name)["tensorrt_llm"]
    assert word(config, release(name).batching_parameter or "gpt_model_type") == "V1"


@pytest.fixture
def without_v1(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table in which 0.19.0 has lost static batching, as the releases after it have."""
    changed = release("0.19.0").model_copy(update={"batching_types": ("inflight_fused_batching",), "deprecated": ()})
    full = {**releases.table(), "0.19.0": changed}
    monkeypatch.setattr(releases, "table", lambda: full)


def test_a_release_without_v1_refuses_static_batching_alone(without_v1: None, render: Any, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"TensorRT-LLM 0\.19\.0 does not serve gpt_model_type=V1") as caught:
        render("static-batching", "0.19.0")
    assert "inflight-batching" in caught.value.remedy
    assert not (tmp_path / "out").exists()
    assert render("inflight-batching", "0.19.0")
    assert render("llama", "0.19.0")


def test_templates_of_another_release_are_told_apart(render: Any, tmp_path: Path) -> None:
    tree(tmp_path / "0.5.0-templates", "0.19.0")
    with pytest.raises(LabError, match="cannot be rendered") as caught:
        render("inflight-batching", "0.5.0")
    assert any("batching_strategy: no value is given" in line for line in caught.value.details)
    assert "the templates must be those of TensorRT-LLM 0.5.0" in caught.value.remedy


def test_templates_of_an_image_may_ask_for_more_than_the_table_knows(tmp_path: Path) -> None:
    """Upstream's own filler leaves such a placeholder, and the backend takes it for "not set"."""
    made = plan(tmp_path, "inflight-batching", release="0.17.0")
    assert made.fetched
    tree(tmp_path / "image", "0.17.0")
    shutil.copytree(tmp_path / "image" / "all_models" / "inflight_batcher_llm", made.fetched)
    config = made.fetched / "tensorrt_llm" / "config.pbtxt"
    asked = 'parameters: { key: "newer" value: { string_value: "${newer}" } }\n'
    config.write_text(config.read_text() + asked)
    request = replace(made.request, output=tmp_path / "out")
    repository.render(request)
    assert 'string_value: "${newer}"' in (tmp_path / "out" / "tensorrt_llm" / "config.pbtxt").read_text()
    assert repository.unknown(request) == ["newer"]
    config.write_text(config.read_text() + "max_batch_size: ${bare}\n")
    with pytest.raises(LabError) as caught:  # outside of quotes it is no configuration
        repository.render(request)
    assert any("bare: no value is given" in line for line in caught.value.details)


@pytest.mark.parametrize("name", RELEASES)
def test_a_persons_settings_reach_the_templates(render: Any, name: str) -> None:
    settings = {
        "decoupled_mode": "true",
        "max_tokens_in_paged_kv_cache": 4096,
        "kv_cache_free_gpu_mem_fraction": 0.2,
        "batch_scheduler_policy": "guaranteed_completion",
    }
    config = render("inflight-batching", name, **settings)["tensorrt_llm"]
    assert config.model_transaction_policy.decoupled
    assert word(config, "max_tokens_in_paged_kv_cache") == "4096"
    assert word(config, "kv_cache_free_gpu_mem_fraction") == "0.2"
    assert word(config, "batch_scheduler_policy") == "guaranteed_no_evict"


def test_what_0_5_0_renders_is_what_the_workshops_sed_lines_make(render: Any, tmp_path: Path) -> None:
    settings = {"max_num_sequences": 4, "batch_scheduler_policy": "max_utilization"}
    ours = render("static-batching", "0.5.0", **settings)["tensorrt_llm"]
    text = next((tmp_path / "0.5.0-templates").rglob("inflight_batcher_llm/tensorrt_llm/config.pbtxt")).read_text()
    sed = {
        "${engine_dir}": word(ours, "engine_dir"),
        "${tokenizer_dir}": word(ours, "tokenizer_dir"),
        "${tokenizer_type}": "auto",
        "${decoupled_mode}": "False",
        "${max_num_sequences}": "4",
        "${batch_scheduler_policy}": "max_utilization",
        "${max_tokens_in_paged_kv_cache}": "",
        "${kv_cache_free_gpu_mem_fraction}": "0.9",
        "${enable_trt_overlap}": "",
        "inflight_fused_batching": "V1",
    }
    for old, new in sed.items():
        text = text.replace(old, new)
    theirs = text_format.Parse(text, model_config_pb2.ModelConfig())
    theirs.parameters["decoupled_mode"].string_value = "false"  # sed's word for it; the same to the backend
    assert ours == theirs


@pytest.mark.parametrize("name", RELEASES)
def test_lab_03_has_its_hugging_face_models_beside_the_releases_own(render: Any, name: str) -> None:
    configs = render("llama", name)
    assert {"ensemble", "tensorrt_llm", "llama-python", "llama-python-batched"} <= set(configs)
    group = configs["llama-python"].instance_group[0]
    assert group.kind == model_config_pb2.ModelInstanceGroup.KIND_GPU
    assert list(group.gpus) == [0]  # without it there is one instance on each


@pytest.mark.parametrize("name", RELEASES)
def test_lab_04_has_its_own_models_around_the_releases_engine(render: Any, name: str) -> None:
    configs = render("codegen", name, engine="tensorrt-llm", max_batch_size=16)
    assert configs["tensorrt_llm"].backend == "tensorrtllm"
    assert [tensor.name for tensor in configs["ensemble"].input][:2] == ["INPUT_0", "INPUT_1"]
    adapter = configs["codegen-350M-mono-gptj"]
    assert adapter.backend == "python"
    assert adapter.max_batch_size == 16
    assert adapter.dynamic_batching.max_queue_delay_microseconds == 2000
    assert word(adapter, "integers") == ("UINT32" if name == "0.5.0" else "INT32")
    assert word(adapter, "words_and_scores") == ("false" if name == "0.5.0" else "true")


def plan(tmp_path: Path, stack: str, profile: str = "gpu", release: str = "", **settings: Any) -> Any:
    workspace = Workspace(ROOT, tmp_path / "cache")
    lab, name = load(workspace).stack(stack)
    return make_plan(workspace, lab, name, Choices(profile, settings, release), str)


@pytest.mark.parametrize("key", ["exact", "threads", "kv_cache_memory_mib", "engine_precision"])
def test_what_only_the_cpu_engine_knows_is_refused_by_name(tmp_path: Path, key: str) -> None:
    with pytest.raises(LabError) as caught:
        plan(tmp_path, "inflight-batching", engine="tensorrt-llm", **{key: "1"})
    assert any(line.startswith(f"{key}: ") for line in caught.value.details)


def test_settings_of_other_engines_are_left_out(tmp_path: Path) -> None:
    assert "tp_size" not in plan(tmp_path, "inflight-batching", "cpu").settings
    assert "exact" not in plan(tmp_path, "inflight-batching", engine="tensorrt-llm").settings


def test_a_release_is_refused_where_none_serves(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"--release 0\.5\.0 does not apply here"):
        plan(tmp_path, "inflight-batching", "cpu", "0.5.0")


@pytest.mark.parametrize(("engine", "profile"), [("tensorrt-llm", "cpu"), ("openvino", "gpu")])
def test_an_engine_is_refused_on_a_profile_that_it_does_not_know(tmp_path: Path, engine: str, profile: str) -> None:
    with pytest.raises(LabError, match=f"engine={engine} is not served on the {profile} profile"):
        plan(tmp_path, "inflight-batching", profile, engine=engine)


def test_the_policy_that_will_be_in_force_is_in_the_status_with_its_reason(tmp_path: Path) -> None:
    made = plan(
        tmp_path, "inflight-batching", "gpu", "0.5.0", batch_scheduler_policy="max_utilization", decoupled_mode=True
    )
    said = made.effective["batch_scheduler_policy"]
    assert (said["asked"], said["effective"]) == ("max_utilization", "guaranteed_no_evict")
    assert "decoupled" in said["reason"]
    assert any("decoupled" in notice for notice in made.notices)
    later = plan(
        tmp_path, "inflight-batching", "gpu", "0.17.0", batch_scheduler_policy="max_utilization", decoupled_mode=True
    )
    assert later.effective == {}


def test_every_other_gpu_stack_has_nvidias_plain_image(tmp_path: Path) -> None:
    assert plan(tmp_path, "iterative").image.endswith("-py3")
    assert plan(tmp_path, "inflight-batching", engine="transformers").image == plan(tmp_path, "iterative").image
