"""TensorRT-LLM's engines: the commands run in order, and engines of other machines refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from lab_errors import lab_error

from labbuild.protocol import Builder, GpuInfo
from labbuild.tensorrt_llm import check_target, commands
from labctl.artifacts import engines
from labctl.artifacts.store import ENGINES
from labctl.workspace import Workspace

CODEGEN = ROOT / "labs" / "shared" / "models" / "tiny-codegen"
GPU = GpuInfo("NVIDIA A100-SXM4-80GB", "8.0", "535.104.05", "sha256:abc")


def build(**options: Any) -> engines.Build:
    return engines.request("tensorrt-llm", "shipped:tiny-gpt2", options)


def lines(**options: Any) -> list[str]:
    argvs = commands(build(**options).options, Path("/w"), Path("/s"), Path("/o"))
    return [" ".join(argv) for argv in argvs]


@pytest.mark.parametrize("setting", ["chunked_context", "kv_cache_reuse"])
def test_prompts_in_pieces_need_an_engine_that_reads_the_paged_cache(setting: str) -> None:
    flag = "--use_paged_context_fmha enable"
    assert flag not in lines()[-1]
    assert flag in lines(**{setting: True})[-1]


def test_an_engine_with_another_rotary_dimension_than_its_weights_is_refused(tmp_path: Path) -> None:
    image = FakeImage()
    wish = engines.request("tensorrt-llm", str(CODEGEN), {"model": "codegen"})
    image.rotary = 64
    with lab_error("rotary-wrong", 64, 16):
        wish.make(Workspace(ROOT, tmp_path), print, Builder(GPU, image.run))
    image.rotary = 16
    assert wish.make(Workspace(ROOT, tmp_path), print, Builder(GPU, image.run))


def test_a_folder_with_spaces_stays_one_word() -> None:
    convert, _ = commands(build().options, Path("/my weights"), Path("/s"), Path("/o"))
    assert "/my weights" in convert


class FakeImage:
    """A serving image whose builder writes what the real one does."""

    def __init__(self) -> None:
        self.ran: list[Sequence[str]] = []
        self.rotary: int | None = None

    def run(self, argv: Sequence[str]) -> None:
        self.ran.append(argv)
        if "--output_dir" not in argv:
            return
        output = Path(argv[argv.index("--output_dir") + 1])
        if argv[0] == "trtllm-build":
            (output / "config.json").write_text(json.dumps({"pretrained_config": {"rotary_dim": self.rotary}}))
            (output / "rank0.engine").write_text("x")


def test_the_commands_run_in_order_in_the_image_and_only_the_engine_stays(tmp_path: Path) -> None:
    workspace, image = Workspace(ROOT, tmp_path), FakeImage()
    wish = build()
    told: list[str] = []
    path = wish.make(workspace, told.append, Builder(GPU, image.run))
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "manifest.json", "rank0.engine"]
    assert told[:2] == ["step 1 of 2: convert_checkpoint.py", "step 2 of 2: trtllm-build"]
    assert [p.name for p in ENGINES.folder(workspace).iterdir() if p.suffix != ".lock"] == [path.name]
    check_target(wish.manifest(workspace), GPU)


def test_without_the_serving_image_it_is_refused(tmp_path: Path) -> None:
    with lab_error("builder-elsewhere"):
        build().make(Workspace(ROOT, tmp_path), print)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"compute_capability": "9.0", "gpu_name": "NVIDIA H100"}, "compute capability: built for 8.0, here 9.0"),
        ({"image_digest": "sha256:def"}, "image: built for sha256:abc, here sha256:def"),
        ({"driver": "470.1"}, "driver: built with 535.104.05, here 470.1"),
    ],
)
def test_an_engine_of_another_target_is_refused(here: dict[str, Any], said: str) -> None:
    manifest = {"key": "k", "options": dict(build().options), "hardware": asdict(GPU)}
    with lab_error("target-other") as caught:
        check_target(manifest, replace(GPU, **here))
    assert said in caught.value.details
    assert "labctl engines prune k" in caught.value.remedy


def test_a_newer_driver_and_a_sibling_gpu_are_fine() -> None:
    manifest = {"key": "k", "options": dict(build().options), "hardware": asdict(GPU)}
    check_target(manifest, replace(GPU, driver="550.54.15", gpu_name="NVIDIA A100-PCIE-40GB"))
