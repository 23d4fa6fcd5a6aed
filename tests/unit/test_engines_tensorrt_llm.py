"""TensorRT-LLM: the exact commands per release, run in order, and engines of other machines refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from labbuild.protocol import Builder, GpuInfo
from labbuild.releases import table
from labbuild.tensorrt_llm import check_rotary, check_target, commands
from labctl.artifacts import engines
from labctl.artifacts.store import ENGINES
from labctl.workspace import Workspace
from labkit.errors import LabError

ROOT = Path(__file__).resolve().parents[2]
GPU = GpuInfo("NVIDIA A100-SXM4-80GB", "8.0", "535.104.05", "sha256:abc")


def build(**options: Any) -> engines.Build:
    return engines.request("tensorrt-llm", "shipped:tiny-gpt2", options)


def lines(**options: Any) -> list[str]:
    argvs = commands(build(**options).options, Path("/w"), Path("/s"), Path("/o"))
    return [" ".join(argv) for argv in argvs]


def test_release_0_5_builds_in_one_command() -> None:
    assert lines(release="0.5.0") == [
        "python3 /app/tensorrt_llm/examples/llama/build.py --model_dir /w --dtype float16"
        " --remove_input_padding --paged_kv_cache --use_inflight_batching --enable_context_fmha"
        " --use_gpt_attention_plugin float16 --use_gemm_plugin float16 --use_rmsnorm_plugin float16"
        " --max_batch_size 64 --max_input_len 2048 --max_output_len 512 --max_num_tokens 8192 --output_dir /o"
    ]


def test_release_0_17_converts_then_builds() -> None:
    assert lines(release="0.17.0.post1") == [
        "python3 /app/examples/llama/convert_checkpoint.py --model_dir /w --dtype float16 --output_dir /s",
        "trtllm-build --checkpoint_dir /s --gemm_plugin float16 --gpt_attention_plugin float16"
        " --remove_input_padding enable --kv_cache_type paged --context_fmha enable"
        " --max_batch_size 64 --max_input_len 2048 --max_seq_len 2560 --max_num_tokens 8192 --output_dir /o",
    ]


@pytest.mark.parametrize(
    ("release", "has", "has_not"),
    [
        ("0.8.0", "--max_output_len 512", "--max_seq_len"),
        ("0.8.0", "--paged_kv_cache enable", "--kv_cache_type"),
        ("0.11.0", "--max_seq_len 2560", "--max_output_len"),
        ("0.14.0", "--kv_cache_type paged", "--paged_kv_cache"),
        ("0.19.0", "/app/examples:/app/tensorrt_llm/examples models/core/llama/convert_checkpoint.py", " llama/"),
    ],
)
def test_each_release_gets_its_own_words(release: str, has: str, has_not: str) -> None:
    text = "\n".join(lines(release=release))
    assert has in text
    assert has_not not in text


@pytest.mark.parametrize(
    ("release", "first", "last"),
    [
        ("0.5.0", "examples/llama/quantize.py", "--enable_fp8 --fp8_kv_cache"),
        ("0.8.0", "--qformat fp8 --kv_cache_dtype fp8", "--strongly_typed"),
        ("0.19.0", "--qformat fp8 --kv_cache_dtype fp8", "trtllm-build"),
    ],
)
def test_fp8_weights_are_quantised_first(release: str, first: str, last: str) -> None:
    steps = lines(release=release, quantization="fp8")
    assert len(steps) == 2
    assert first in steps[0]
    assert last in steps[1]


@pytest.mark.parametrize(
    ("release", "words"),
    [
        ("0.5.0", ["/app/tensorrt_llm/examples/gptj/build.py --model_dir /s/gptj"]),
        (
            "0.17.0",
            ["/app/examples/gptj/convert_checkpoint.py --model_dir /s/gptj", "trtllm-build --checkpoint_dir /s"],
        ),
        ("0.19.0", ["run-example", "trtllm-build"]),
    ],
)
def test_codegen_is_built_as_gptj_from_its_weights_in_gptjs_order(release: str, words: list[str]) -> None:
    first, *steps = lines(release=release, model="codegen")
    assert first == "python3 -m labserve.codegen.as_gptj /w /s/gptj"
    assert [word in step for word, step in zip(words, steps, strict=True)] == [True] * len(words)


@pytest.mark.parametrize("release", ["0.5.0", "0.8.0", "0.11.0", "0.14.0", "0.17.0", "0.19.0"])
def test_gptj_is_built_in_fp8_and_over_two_gpus_by_every_release(release: str) -> None:
    text = "\n".join(lines(release=release, model="gptj", quantization="fp8", tp_size=2))
    assert "--qformat fp8" in text
    assert "size 2" in text


@pytest.mark.parametrize("release", ["0.5.0", "0.8.0", "0.19.0"])
def test_several_gpus_are_asked_for_only_when_there_are_several(release: str) -> None:
    assert "tp_size" not in "".join(lines(release=release))
    assert "--tp_size 2 --pp_size 2" in "".join(lines(release=release, tp_size=2, pp_size=2))


@pytest.mark.parametrize("setting", ["chunked_context", "kv_cache_reuse"])
def test_prompts_in_pieces_need_an_engine_that_reads_the_paged_cache(setting: str) -> None:
    flag = "--use_paged_context_fmha enable"
    assert flag not in lines(release="0.17.0")[-1]
    assert flag in lines(release="0.17.0", **{setting: True})[-1]


CODEGEN = ROOT / "labs" / "shared" / "models" / "tiny-codegen"


def test_gptj_of_0_5_0_gets_the_rotary_dimension_of_its_weights_as_a_number() -> None:
    options = build(release="0.5.0", model="codegen").options
    assert "--rotary_dim 16 " in " ".join(commands(options, CODEGEN, Path("/s"), Path("/o"))[-1])
    for shape, words in (
        ("codegen-350m", "--rotary_dim 32 "),
        ("", "--rotary_dim <rotary_dim, read from config.json> "),
    ):
        made = commands(options, Path("/w"), Path("/s"), Path("/o"), shape)
        assert words in " ".join(made[-1])


@pytest.mark.parametrize("release", [it.name for it in table().values() if it.builder])
def test_an_engine_with_another_rotary_dimension_than_its_weights_is_refused(tmp_path: Path, release: str) -> None:
    old = release == "0.5.0"  # its engines do not say
    image = FakeImage()
    image.rotary = None if old else 64
    wish = engines.request("tensorrt-llm", str(CODEGEN), {"release": release, "model": "codegen"})
    if old:
        check_rotary(made_engine(tmp_path, None), 16, [["build.py", "--rotary_dim", "16"]])
        with pytest.raises(LabError, match="rotates 64 numbers of each head, its weights 16"):
            check_rotary(made_engine(tmp_path, None), 16, [["build.py", "--rotary_dim", "64"]])
        return
    with pytest.raises(LabError, match="rotates 64 numbers of each head, its weights 16"):
        wish.make(Workspace(ROOT, tmp_path), print, Builder(GPU, image.run))
    image.rotary = 16
    assert wish.make(Workspace(ROOT, tmp_path), print, Builder(GPU, image.run))


def made_engine(folder: Path, rotary: int | None) -> Path:
    config = {"pretrained_config": {"rotary_dim": rotary}} if rotary else {"builder_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_static_batching_gets_room_for_a_whole_batch_of_the_longest_prompts() -> None:
    assert "--max_num_tokens 131072 " in lines(release="0.17.0", max_num_tokens=0)[-1]
    assert "--max_num_tokens 2048 " in lines(release="0.17.0", max_batch_size=1)[-1]


def test_a_folder_with_spaces_stays_one_word() -> None:
    (argv,) = commands(build(release="0.5.0").options, Path("/my weights"), Path("/s"), Path("/o"))
    assert "/my weights" in argv


@pytest.mark.parametrize(
    "options",
    [
        {"release": "0.4.0"},
        {"release": "1.0.0"},
        {"release": "main"},
        {"release": "0.5.0", "model": "gptj", "pp_size": 2},
    ],
)
def test_what_a_release_cannot_do_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(LabError):
        lines(**options)


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
    wish = build(release="0.14.0")
    told: list[str] = []
    path = wish.make(workspace, told.append, Builder(GPU, image.run))
    assert sorted(p.name for p in path.iterdir()) == ["config.json", "manifest.json", "rank0.engine"]
    assert told[:2] == ["step 1 of 2: convert_checkpoint.py", "step 2 of 2: trtllm-build"]
    assert [p.name for p in ENGINES.folder(workspace).iterdir() if p.suffix != ".lock"] == [path.name]
    check_target(wish.manifest(workspace), GPU)


def test_without_the_serving_image_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="built in the image that serves it"):
        build().make(Workspace(ROOT, tmp_path), print)


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"compute_capability": "9.0", "gpu_name": "NVIDIA H100"}, "compute capability: built for 8.0, here 9.0"),
        ({"image_digest": "sha256:def"}, "image: built for sha256:abc, here sha256:def"),
        ({"driver": "470.1"}, "driver: built with 535.104.05, here 470.1"),
        ({"gpus": 0}, "GPUs: built for 1, here 0"),
    ],
)
def test_an_engine_of_another_target_is_refused(here: dict[str, Any], said: str) -> None:
    manifest = {"key": "k", "options": dict(build().options), "hardware": asdict(GPU)}
    with pytest.raises(LabError) as caught:
        check_target(manifest, replace(GPU, **here))
    assert said in caught.value.details
    assert "labctl engines prune k" in caught.value.remedy


def test_a_newer_driver_and_a_sibling_gpu_are_fine() -> None:
    manifest = {"key": "k", "options": dict(build().options), "hardware": asdict(GPU)}
    check_target(manifest, replace(GPU, driver="550.54.15", gpu_name="NVIDIA A100-PCIE-40GB"))
