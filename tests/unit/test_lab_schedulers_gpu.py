"""Lab 06 on the gpu profile: the release's own parameters where it has them, and what it lacks refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from google.protobuf import text_format
from machinery import ROOT
from release_templates import tree
from tritonclient.grpc import model_config_pb2

from labctl.cli.main import cli
from labkit.errors import LabError


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_ROOT", str(ROOT))
    monkeypatch.setenv("LABS_CACHE", str(tmp_path / "cache"))


def invoked(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--profile", "gpu"])


def rendered(folder: Path, release: str, *settings: str) -> dict[str, Any]:
    chosen = [word for setting in settings for word in ("--set", setting)]
    templates, output = tree(folder / "templates", release), folder / "out"
    done = invoked(
        "render", "modern", "--release", release, "--templates", str(templates), "--output", str(output), *chosen
    )
    assert done.exit_code == 0, done.output
    return {
        path.parent.name: text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())
        for path in output.glob("*/config.pbtxt")
    }


def test_a_release_gets_its_own_words_for_chunks_and_prefixes(tmp_path: Path) -> None:
    models = rendered(tmp_path, "0.17.0", "enable_chunked_context=true", "enable_kv_cache_reuse=true")
    said = {key: value.string_value for key, value in models["tensorrt_llm"].parameters.items()}
    assert said["enable_chunked_context"] == said["enable_kv_cache_reuse"] == "true"


@pytest.mark.parametrize(("release", "kind"), [("0.5.0", "TYPE_UINT32"), ("0.17.0", "TYPE_INT32")])
def test_the_door_stands_before_every_release_and_speaks_its_integers(tmp_path: Path, release: str, kind: str) -> None:
    door = rendered(tmp_path, release)["door"]
    types = {item.name: model_config_pb2.DataType.Name(item.data_type) for item in door.input}
    assert types["max_tokens"] == kind
    assert door.response_cache.enable
    assert door.dynamic_batching.priority_levels == 2
    assert door.dynamic_batching.default_queue_policy.max_queue_size == 8


@pytest.mark.parametrize(
    ("asked", "left_out"),
    [
        (("--profile", "gpu"), 0),  # without speculation there, prompts share their beginnings
        (("--profile", "gpu", "--set", "engine=transformers"), 2),
        (("--profile", "cpu"), 0),
        (("--profile", "cpu", "--set", "speculation=draft"), 3),
    ],
)
def test_the_phases_about_shared_beginnings_run_wherever_an_engine_can_share_them(
    asked: tuple[str, ...], left_out: int
) -> None:
    done = CliRunner().invoke(cli, ["run", "schedulers", "--dry-run", *asked])
    assert done.exit_code == 0, done.output
    notes = [line for line in done.output.splitlines() if "phase prefix-" in line and "left out" in line]
    assert len(notes) == left_out, notes


def test_every_phase_of_a_gpu_has_a_server_and_an_engine_of_its_own() -> None:
    done = invoked("run", "schedulers", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.stdout.count("# tritonserver with") == done.stdout.count("# the client of phase") == 5
    for words in ("--max_num_tokens 8192", "--max_num_tokens 256", "--use_paged_context_fmha enable"):
        assert words in done.stdout, words


@pytest.mark.parametrize("setting", ["speculation=draft", "speculation=prompt_lookup", "scheduling=fair"])
def test_what_needs_engines_that_labctl_does_not_build_is_refused_by_name(setting: str) -> None:
    error = invoked("up", "modern", "--set", setting, "--dry-run").exception
    assert isinstance(error, LabError)
    assert setting.partition("=")[0] in str(error)
