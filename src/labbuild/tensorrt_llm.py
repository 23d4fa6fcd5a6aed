"""The NVIDIA GPU engine: TensorRT-LLM's own builder, run in the image that will serve the engine.

An engine belongs to a release, a GPU's compute capability and a driver: its manifest remembers all of them. The
commands are data: ``releases.yaml``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from labbuild import releases
from labbuild.protocol import Builder, EngineCompiler, Facts, GpuInfo, Option, Options, Tell
from labbuild.random_weights import SHAPES
from labbuild.releases import Release
from labkit.errors import LabError

SUPPORTED_SINCE, FP8_SINCE = (8, 0), (8, 9)  # compute capabilities; the first by upstream's support matrix
ROTARY = ("gptj", "codegen")  # models whose rotary dimension is not the width of a head
FOUND_LATER = "<rotary_dim, read from config.json>"  # for weights that do not exist yet


class TensorRtLlm(EngineCompiler):
    """Built once per model, options and release; the GPU is in the manifest alone: a plan is made without asking it."""

    name = "tensorrt-llm"
    recipe = "1"
    options: Mapping[str, Option] = {
        "release": Option(releases.DEFAULT_RELEASE),
        "model": Option("llama", ("llama", "gptj", "codegen")),
        "dtype": Option("float16", ("float16", "bfloat16")),
        "quantization": Option("none", ("none", "fp8")),
        "tp_size": Option(1),
        "pp_size": Option(1),
        "max_batch_size": Option(64),
        "max_input_len": Option(2048),
        "max_output_len": Option(512),
        "max_num_tokens": Option(8192, minimum=0),
        "chunked_context": Option("false", ("false", "true")),
        "kv_cache_reuse": Option("false", ("false", "true")),
    }
    essential = ("config.json", "*.engine")

    def make(self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None) -> Facts:
        """Run the release's commands; the checkpoint between them lives beside the engine and is removed."""
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
            check_rotary(target, rotary_dim(weights), steps)
        return {"hardware": asdict(builder.gpu), "versions": {"tensorrt_llm": options["release"]}}


def require(options: Options, gpu: GpuInfo) -> None:
    """Refuse, before minutes are spent, an engine that these GPUs cannot serve. Raises LabError."""
    world = options["tp_size"] * options["pp_size"]
    if world > gpu.gpus:
        raise LabError(
            f"the engine needs {world} GPUs, but there {'is' if gpu.gpus == 1 else 'are'} {gpu.gpus}",
            f"tp_size={options['tp_size']} times pp_size={options['pp_size']}",
            f"--set tp_size={gpu.gpus} --set pp_size=1",
            code="gpus-too-few",
        )
    release = releases.release(str(options["release"]))
    capability = _version(gpu.compute_capability)
    its = f"its compute capability is {gpu.compute_capability}"
    if capability < SUPPORTED_SINCE:
        raise LabError(
            f"{gpu.gpu_name} is too old for TensorRT-LLM",
            f"{its}; upstream supports 8.0 (Ampere) or newer",
            "--set engine=transformers",
            code="gpu-too-old",
        )
    if not _has_kernels(release, gpu):
        later = (other.name for other in releases.all_releases().values() if other.steps and _has_kernels(other, gpu))
        known = next(later, "")
        but = f", without {' and '.join(release.without)}" if release.without else ""
        raise LabError(
            f"{gpu.gpu_name} is newer than TensorRT-LLM {release.name}",
            f"{its}; that release builds for {release.newest} at most{but}",
            f"--release {known}" if known else "--release 1.2.1 --set engine=llmapi, or engine=transformers",
            code="gpu-too-new",
        )
    if options["quantization"] == "fp8" and capability < FP8_SINCE:
        raise LabError(
            f"{gpu.gpu_name} does not support fp8",
            f"{its}; fp8 needs 8.9 or newer (Ada, Hopper)",
            "--set quantization=none",
            code="gpu-without-fp8",
        )


def _has_kernels(release: Release, gpu: GpuInfo) -> bool:
    """Whether the release builds engines for chips as new as this one."""
    known = _version(gpu.compute_capability) <= _version(release.newest)
    return known and gpu.compute_capability not in release.without


def check_rotary(engine: Path, wanted: int, steps: Sequence[Sequence[str]]) -> None:
    """Raises LabError for an engine whose rotary dimension is not that of its weights: it would answer nonsense.

    An engine of ``trtllm-build`` has it in its config.json, from the checkpoint; of ``build.py``, the command is proof.
    """
    config = json.loads((engine / "config.json").read_text(encoding="utf-8"))
    built = config.get("pretrained_config", config).get("rotary_dim")
    if built is None:
        words = [word for argv in steps for word in argv]
        built = int(words[words.index("--rotary_dim") + 1]) if "--rotary_dim" in words else None
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
    options = manifest["options"]
    world = options["tp_size"] * options["pp_size"]
    if world > gpu.gpus:
        wrong.append(f"GPUs: built for {world}, here {gpu.gpus}")
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


def commands(options: Options, weights: Path, scratch: Path, output: Path, shape: str = "") -> list[list[str]]:
    """The exact commands that build one engine, in order; ``shape`` is that of random weights, which may be missing.

    Raises LabError if the release is unknown, or has no way to build that model like that.
    """
    release = releases.release(str(options["release"]))
    model = str(options["model"])
    before: list[list[str]] = []
    rotary = _rotary_word(weights, shape) if model in ROTARY else ""
    if model == "codegen":  # the same architecture, its weights in another order
        before = [["python3", "-m", "labserve.codegen.as_gptj", str(weights), str(scratch / "gptj")]]
        model, weights = "gptj", scratch / "gptj"
    if model not in release.steps:
        raise LabError(f"release {release.name} has no builder for {model}", code="release-without-model")
    world = options["tp_size"] * options["pp_size"]
    # Both read a prompt in pieces, against keys and values that are in the paged cache already.
    paged_context = "true" in (options["chunked_context"], options["kv_cache_reuse"])
    facts = {**options, "model": model, "parallel": world > 1, "paged_context": paged_context}
    values = {
        **options,
        "model": model,
        "weights": weights,
        "scratch": scratch,
        "output": output,
        "world_size": world,
        "max_seq_len": options["max_input_len"] + options["max_output_len"],
        "max_num_tokens": num_tokens(options),
        "rotary_dim": rotary,
    }
    steps = [step for step in release.steps[model] if _applies(step, facts)]
    if options["pp_size"] > 1 and "{pp_size}" not in str(steps):
        raise LabError(
            f"release {options['release']} divides {model} among GPUs by tensor parallelism only",
            "it has no pipeline parallelism for this model",
            "--set pp_size=1 with a larger tp_size, or --release 0.17.0",
            code="pipeline-unsupported",
        )
    return [*before, *(_words(step["parts"], facts, values) for step in steps)]


def num_tokens(options: Options) -> int:
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


def _rotary_word(weights: Path, shape: str) -> str:
    """The same as a word of a command; weights that are to be made are known by their shape."""
    if (weights / "config.json").is_file():
        return str(rotary_dim(weights))
    if shape and "rotary_dim" in SHAPES[shape]["config"]:
        return str(SHAPES[shape]["config"]["rotary_dim"])
    return FOUND_LATER


def _applies(part: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return all(facts[key] == value for key, value in part.get("when", {}).items())


def _words(parts: Any, facts: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Flatten the parts that apply; split first, fill then."""
    if isinstance(parts, str):
        return [word.format(**values) for word in parts.split()]
    if isinstance(parts, dict):
        return _words(parts["parts"], facts, values) if _applies(parts, facts) else []
    return [word for part in parts for word in _words(part, facts, values)]
