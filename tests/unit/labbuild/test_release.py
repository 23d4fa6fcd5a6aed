"""Which settings and images serve a stack on a GPU, and what no golden file can say of TensorRT-LLM's templates."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from golden_trtllm import TEMPLATES
from lab_errors import lab_error

from labctl import repository
from labctl.catalog import load_catalog
from labctl.options import Options
from labctl.plan import make_plan
from labctl.workspace import Workspace


def plan(tmp_path: Path, stack: str, profile: str = "gpu", **settings: Any) -> Any:
    workspace = Workspace(ROOT, tmp_path / "cache")
    lab, name = load_catalog(workspace).stack(stack)
    return make_plan(workspace, lab, name, Options(profile, settings), tmp_path / "out")


def test_templates_of_an_image_may_ask_for_more_than_the_table_knows(tmp_path: Path) -> None:
    """Upstream's own filler leaves such a placeholder, and the backend takes it for "not set"."""
    made = plan(tmp_path, "inflight-batching", engine="tensorrt-llm")
    assert made.fetched
    shutil.copytree(TEMPLATES / "all_models" / "inflight_batcher_llm", made.fetched)
    config = made.fetched / "tensorrt_llm" / "config.pbtxt"
    asked = 'parameters: { key: "newer" value: { string_value: "${newer}" } }\n'
    config.write_text(config.read_text() + asked)
    repository.render_repository(made.request)
    assert 'string_value: "${newer}"' in (tmp_path / "out" / "tensorrt_llm" / "config.pbtxt").read_text()
    assert repository.unfilled_placeholders(made.request) == ["newer"]
    config.write_text(config.read_text() + "max_batch_size: ${bare}\n")
    with lab_error("template-invalid", "bare: "):  # outside of quotes it is no configuration
        repository.render_repository(made.request)


@pytest.mark.parametrize("key", ["exact", "threads", "kv_cache_memory_mib", "engine_precision"])
def test_what_only_the_cpu_engine_knows_is_refused_by_name(tmp_path: Path, key: str) -> None:
    asked: dict[str, Any] = {"engine": "tensorrt-llm", key: "1"}
    with lab_error("settings-unusable") as caught:
        plan(tmp_path, "inflight-batching", **asked)
    assert any(line.startswith(f"{key}: ") for line in caught.value.details)


def test_settings_of_other_engines_are_left_out(tmp_path: Path) -> None:
    assert "quantization" not in plan(tmp_path, "inflight-batching", "cpu").settings
    assert "exact" not in plan(tmp_path, "inflight-batching", engine="tensorrt-llm").settings


@pytest.mark.parametrize(("engine", "profile"), [("tensorrt-llm", "cpu"), ("openvino", "gpu")])
def test_an_engine_is_refused_on_a_profile_that_it_does_not_know(tmp_path: Path, engine: str, profile: str) -> None:
    with lab_error("setting-not-on-profile", f"engine={engine}", profile):
        plan(tmp_path, "inflight-batching", profile, engine=engine)


def test_only_lab_01s_native_backends_need_nvidias_plain_image(tmp_path: Path) -> None:
    assert plan(tmp_path, "sequence-batcher").image.endswith("-py3")
    assert plan(tmp_path, "sequence-batcher", backends="python").image is None
    assert plan(tmp_path, "iterative").image is plan(tmp_path, "inflight-batching", engine="transformers").image is None


def test_importing_the_renderer_loads_neither_grpc_nor_protobuf() -> None:
    code = "import sys, labctl.repository; print([m for m in ('grpc', 'google.protobuf') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
