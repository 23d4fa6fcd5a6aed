"""Lab 01's repository: every setting reaches the configuration that Triton reads, on both profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from google.protobuf import text_format
from lab_errors import lab_error
from tritonclient.grpc import model_config_pb2

from labctl import catalog, repository
from labctl.options import Options
from labctl.plan import make_plan
from labctl.workspace import Workspace


def render(tmp_path: Path, profile: str = "cpu", **settings: Any) -> dict[str, Any]:
    """The configuration of each model, by its name."""
    workspace = Workspace(ROOT, tmp_path / "cache")
    lab, name = catalog.load_catalog(workspace).stack("sequence")
    plan = make_plan(workspace, lab, name, Options(profile, settings), tmp_path / "repository")
    models = repository.render_repository(plan.request)
    return {
        model: text_format.Parse(
            (plan.request.output / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
        )
        for model in models
    }


@pytest.mark.parametrize("strategy", ["direct", "oldest"])
def test_the_strategy_is_the_one_that_was_asked_for(tmp_path: Path, strategy: str) -> None:
    batching = render(tmp_path, strategy=strategy, max_candidate_sequences=7)["tokenizer"].sequence_batching
    assert batching.WhichOneof("strategy_choice") == strategy
    assert strategy == "direct" or batching.oldest.max_candidate_sequences == 7


@pytest.mark.parametrize(
    ("profile", "asked", "backends"),
    [
        ("cpu", {}, ["python", "python"]),
        ("gpu", {}, ["onnxruntime", "pytorch"]),
        ("gpu", {"backends": "python"}, ["python", "python"]),
    ],
)
def test_each_profile_has_its_own_generators_with_the_same_tensors(
    tmp_path: Path, profile: str, asked: dict[str, str], backends: list[str]
) -> None:
    configs = render(tmp_path, profile, **asked)
    generators = [configs["generator_onnx"], configs["generator_torchscript"]]
    assert [config.backend for config in generators] == backends
    assert [[t.name for t in (*c.input, *c.output)] for c in generators] == [
        ["INPUT_TOKEN_IDS", "OUTPUT_LOGITS"],
        ["INPUT__0", "OUTPUT__0"],
    ]
    assert {config.instance_group[0].kind for config in generators} == {{"cpu": 2, "gpu": 1}[profile]}
    assert (tmp_path / "repository" / "generator_onnx" / "1" / "model.onnx").is_symlink()
    assert (tmp_path / "repository" / "generator_torchscript" / "1" / "model.pt").is_symlink()
    assert (tmp_path / "repository" / "generator_onnx" / "1" / "model.py").exists() == (backends[0] == "python")


def test_the_native_backends_are_refused_where_there_is_no_gpu_profile(tmp_path: Path) -> None:
    with lab_error("setting-not-on-profile", "backends=native"):
        render(tmp_path, backends="native")


@pytest.mark.parametrize("generator", ["onnx", "torchscript"])
def test_the_ensemble_uses_the_generator_that_was_asked_for(tmp_path: Path, generator: str) -> None:
    steps = render(tmp_path, generator=generator)["ensemble_pipeline"].ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["tokenizer", f"generator_{generator}", "detokenizer"]


@pytest.mark.parametrize(("model", "size"), [("shipped:tiny-gpt2", 1216), ("random:gpt2", -1)])
def test_the_vocabulary_is_that_of_the_model_and_open_while_its_weights_are_not_here(
    tmp_path: Path, model: str, size: int
) -> None:
    configs = render(tmp_path, model=model)
    assert list(configs["generator_onnx"].output[0].dims) == [-1, size]
    assert list(configs["detokenizer"].input[0].dims) == [-1, size]


@pytest.mark.parametrize(("kind", "expected"), [("uint64", ["TYPE_UINT64"]), ("string", [])])
def test_a_correlation_id_reaches_the_model_as_a_control_where_triton_can_do_so(
    tmp_path: Path, kind: str, expected: list[str]
) -> None:
    controls = render(tmp_path, correlation_id=kind)["tokenizer"].sequence_batching.control_input
    assert [c.name for c in controls][:3] == ["START", "END", "READY"]
    types = [model_config_pb2.DataType.Name(c.control[0].data_type) for c in controls if c.name == "CORR_ID"]
    assert types == expected


def test_sizes_and_times_reach_the_batcher(tmp_path: Path) -> None:
    configs = render(tmp_path, max_batch_size=3, max_sequence_idle_microseconds=7000, instances=2)
    assert {config.max_batch_size for config in configs.values()} == {3}
    assert configs["tokenizer"].sequence_batching.max_sequence_idle_microseconds == 7000
    assert configs["tokenizer"].instance_group[0].count == 2
