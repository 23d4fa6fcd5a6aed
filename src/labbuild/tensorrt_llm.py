"""The NVIDIA GPU engine: TensorRT-LLM's own builder, run in the image that will serve the engine.

An engine belongs to an image, a GPU's compute capability and a driver: its manifest remembers all of them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labbuild import release
from labbuild.protocol import Builder, EngineCompiler, Facts, GpuInfo, Option, Options, Tell
from labkit.errors import LabError

SUPPORTED_SINCE, FP8_SINCE = (8, 0), (8, 9)  # compute capabilities; the first by upstream's support matrix
ROTARY = ("gptj", "codegen")  # models whose rotary dimension is not the width of a head


class TensorRtLlm(EngineCompiler):
    """Built once per model and options; the GPU is in the manifest alone: a plan is made without asking it."""

    name = "tensorrt-llm"
    recipe = "1"
    options: Mapping[str, Option] = {
        "model": Option("llama", ("llama", "gptj", "codegen")),
        "dtype": Option("float16", ("float16", "bfloat16")),
        "quantization": Option("none", ("none", "fp8")),
        "max_batch_size": Option(64),
        "max_input_len": Option(2048),
        "max_output_len": Option(512),
        "max_num_tokens": Option(8192, minimum=0),
        "chunked_context": Option("false", ("false", "true")),
        "kv_cache_reuse": Option("false", ("false", "true")),
    }
    essential = ("config.json", "*.engine")

    def make(self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None) -> Facts:
        """Run the commands; the checkpoint between them lives beside the engine and is removed."""
        if builder is None:
            raise LabError(
                "a TensorRT-LLM engine is built in the image that serves it",
                "this environment has no TensorRT-LLM builder",
                "use --profile gpu --runtime compose on a machine with an NVIDIA GPU",
                code="builder-elsewhere",
            )
        require(options, builder.gpu)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".checkpoint-") as scratch:
            steps = commands(options, weights, Path(scratch), target)
            for number, argv in enumerate(steps, 1):
                script = argv[1] if argv[0] == "python3" else argv[0]
                tell(f"step {number} of {len(steps)}: {Path(script).name}")
                builder.run(argv)
        if options["model"] in ROTARY:
            check_rotary(target, rotary_dim(weights))
        return {"hardware": asdict(builder.gpu), "versions": {"tensorrt_llm": release.RELEASE}}


def require(options: Options, gpu: GpuInfo) -> None:
    """Refuse, before minutes are spent, an engine that this GPU cannot serve. Raises LabError."""
    capability = _version(gpu.compute_capability)
    its = f"its compute capability is {gpu.compute_capability}"
    if capability < SUPPORTED_SINCE:
        raise LabError(
            f"{gpu.gpu_name} is too old for TensorRT-LLM",
            f"{its}; upstream supports 8.0 (Ampere) or newer",
            "--set engine=transformers",
            code="gpu-too-old",
        )
    if capability > _version(release.NEWEST) or gpu.compute_capability in release.UNKNOWN:
        raise LabError(
            f"{gpu.gpu_name} is newer than TensorRT-LLM {release.RELEASE}",
            f"{its}; that release builds for {release.NEWEST} at most, without {' and '.join(release.UNKNOWN)}",
            "--set engine=vllm, or engine=transformers",
            code="gpu-too-new",
        )
    if options["quantization"] == "fp8" and capability < FP8_SINCE:
        raise LabError(
            f"{gpu.gpu_name} does not support fp8",
            f"{its}; fp8 needs 8.9 or newer (Ada, Hopper)",
            "--set quantization=none",
            code="gpu-without-fp8",
        )


def check_rotary(engine: Path, wanted: int) -> None:
    """Raises LabError for an engine whose rotary dimension is not that of its weights: it would answer nonsense."""
    config = json.loads((engine / "config.json").read_text(encoding="utf-8"))
    built = config["pretrained_config"].get("rotary_dim")
    if built != wanted:
        raise LabError(
            f"the engine rotates {built} numbers of each head, its weights {wanted}",
            "it would answer nonsense",
            code="rotary-wrong",
        )


def check_target(manifest: Mapping[str, Any], gpu: GpuInfo) -> None:
    """Raises LabError, with all that differs and matters, for the manifest of an engine of another machine or image.

    A newer driver or a GPU of the same compute capability under another name is fine.
    """
    built = manifest.get("hardware")
    if not built:
        raise LabError(
            "the engine does not say what it was built for",
            "",
            f"labctl engines prune {manifest['key']}",
            code="target-unstated",
        )
    wrong = [
        f"{label}: built for {built[field]}, here {getattr(gpu, field)}"
        for field, label in (("compute_capability", "compute capability"), ("image_digest", "image"))
        if built[field] != getattr(gpu, field)
    ]
    if _version(gpu.driver) < _version(built["driver"]):
        wrong.append(f"driver: built with {built['driver']}, here {gpu.driver}")
    if wrong:
        remedy = f"labctl engines prune {manifest['key']}, then build it in the image and on the GPU that serve it"
        raise LabError(
            f"the engine was built for another target ({built['gpu_name']})", "", remedy, wrong, code="target-other"
        )


def _version(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        raise LabError(f"'{text}' is not a version", code="version-unreadable") from None


def commands(options: Options, weights: Path, scratch: Path, output: Path) -> list[list[str]]:
    """The exact commands that build one engine, in order, in the image that will serve it."""
    model, dtype = str(options["model"]), str(options["dtype"])
    before: list[list[str]] = []
    if model == "codegen":  # the same architecture, its weights in another order
        before = [["python3", "-m", "labserve.codegen.as_gptj", str(weights), str(scratch / "gptj")]]
        model, weights = "gptj", scratch / "gptj"
    script, more = f"/app/examples/{model}/convert_checkpoint.py", ""
    if options["quantization"] == "fp8":
        script, more = "/app/examples/quantization/quantize.py", "--qformat fp8 --kv_cache_dtype fp8 --calib_size 512"
    convert = ["python3", script, "--model_dir", str(weights), "--dtype", dtype, *more.split()]
    longest = options["max_input_len"] + options["max_output_len"]
    flags = (
        f"--gemm_plugin {dtype} --gpt_attention_plugin {dtype} "
        "--remove_input_padding enable --kv_cache_type paged --context_fmha enable "
        f"--max_batch_size {options['max_batch_size']} --max_input_len {options['max_input_len']} "
        f"--max_seq_len {longest} --max_num_tokens {_num_tokens(options)}"
    )
    # Both read a prompt in pieces, against keys and values that are in the paged cache already.
    if "true" in (options["chunked_context"], options["kv_cache_reuse"]):
        flags += " --use_paged_context_fmha enable"
    build = ["trtllm-build", "--checkpoint_dir", str(scratch), *flags.split(), "--output_dir", str(output)]
    return [*before, [*convert, "--output_dir", str(scratch)], build]


def _num_tokens(options: Options) -> int:
    """The tokens that one step of the engine may compute: ``max_num_tokens``, or with 0 a whole batch of the longest.

    Static batching (V1) computes all prompts of a batch in one step, and so needs the latter.
    """
    most = int(options["max_batch_size"]) * int(options["max_input_len"])
    return min(int(options["max_num_tokens"]), most) or most


def rotary_dim(weights: Path) -> int:
    """The rotary dimensions of GPT-J and CodeGen, from the folder's config.json. Raises LabError: it has none."""
    dimension = json.loads((weights / "config.json").read_text(encoding="utf-8")).get("rotary_dim")
    if not isinstance(dimension, int):
        raise LabError(
            f"{weights / 'config.json'} has no rotary_dim", "GPT-J and CodeGen are built with it", code="rotary-missing"
        )
    return dimension
