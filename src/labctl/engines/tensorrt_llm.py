"""The NVIDIA GPU engine: TensorRT-LLM's own builder, run in the image that will serve the engine.

An engine belongs to a release, a GPU's compute capability and a driver; the manifest remembers all of them, and
:func:`check_target` refuses another machine before a server starts. The commands are data: ``trtllm/releases.yaml``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.engines.protocol import Builder, Option, Options, Tell
from labctl.errors import LabError
from labctl.trtllm import releases

FP8_SINCE = (8, 9)  # compute capability


@dataclass(frozen=True)
class GpuInfo:
    """What an engine is tied to (as a dictionary: a builder's ``hardware``).

    ``image_digest`` is that of the image in which it is built and served.
    """

    gpu_name: str
    compute_capability: str
    driver: str
    image_digest: str
    gpus: int = 1


class TensorRtLlm:
    """Built once per model, options and release.

    The key says nothing of the GPU (a plan is made without asking it): the manifest does.
    """

    name = "tensorrt-llm"
    recipe = "1"
    options: Mapping[str, Option] = {
        "release": Option("0.5.0"),
        "model": Option("llama", ("llama", "gptj", "codegen")),
        "dtype": Option("float16", ("float16", "bfloat16")),
        "quantization": Option("none", ("none", "fp8")),
        "tp_size": Option(1),
        "pp_size": Option(1),
        "max_batch_size": Option(64),
        "max_input_len": Option(2048),
        "max_output_len": Option(512),
        "chunked_context": Option("false", ("false", "true")),
        "kv_cache_reuse": Option("false", ("false", "true")),
    }
    essential = ("config.json", "*.engine")

    def make(
        self, weights: Path, options: Options, target: Path, tell: Tell, builder: Builder | None
    ) -> Mapping[str, Any]:
        """Run the release's commands; the checkpoint between them lives beside the engine and is removed."""
        if builder is None:
            raise LabError(
                "a TensorRT-LLM engine is built in the image that serves it",
                "this environment has no TensorRT-LLM builder",
                "use --profile gpu --runtime compose on a machine with an NVIDIA GPU",
            )
        require(options, GpuInfo(**builder.hardware))
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".checkpoint-") as scratch:
            steps = commands(options, weights, Path(scratch), target)
            for number, argv in enumerate(steps, 1):
                tell(f"step {number} of {len(steps)}: {Path(argv[1] if argv[0] == 'python3' else argv[0]).name}")
                builder.run(argv)
        return {"hardware": dict(builder.hardware), "versions": {"tensorrt_llm": options["release"]}}


def require(options: Options, gpu: GpuInfo) -> None:
    """Refuse, before minutes are spent, an engine that these GPUs cannot serve. Raises LabError."""
    world = options["tp_size"] * options["pp_size"]
    if world > gpu.gpus:
        raise LabError(
            f"the engine is to be spread over {world} GPUs, but there {'is' if gpu.gpus == 1 else 'are'} {gpu.gpus}",
            f"tp_size={options['tp_size']} times pp_size={options['pp_size']}",
            f"--set tp_size={gpu.gpus} --set pp_size=1",
        )
    release = releases.release(str(options["release"]))
    if release.newest and _version(gpu.compute_capability) > _version(release.newest):
        known = next(other.name for other in releases.table().values() if not other.newest)
        raise LabError(
            f"{gpu.gpu_name} is newer than TensorRT-LLM {release.name}",
            f"its compute capability is {gpu.compute_capability}; that release builds for {release.newest} at most",
            f"--release {known} or newer",
        )
    if options["quantization"] == "fp8" and _version(gpu.compute_capability) < FP8_SINCE:
        raise LabError(
            f"{gpu.gpu_name} does not support fp8",
            f"its compute capability is {gpu.compute_capability}; fp8 needs 8.9 or newer (Ada, Hopper)",
            "--set quantization=none",
        )


def commands(options: Options, weights: Path, scratch: Path, output: Path) -> list[list[str]]:
    """The exact commands that build one engine, in order.

    Raises:
        LabError: the release is unknown, or has no way to build that model like that.
    """
    release = releases.release(str(options["release"]))
    model = str(options["model"])
    if model == "codegen":  # the same architecture, its weights in another order
        reordered = scratch / "gptj"
        step = ["python3", "-m", "labserve.codegen.as_gptj", str(weights), str(reordered)]
        return [step, *commands({**options, "model": "gptj"}, reordered, scratch, output)]
    if model not in release.steps:
        raise LabError(f"release {release.name} has no builder for {model}")
    world = options["tp_size"] * options["pp_size"]
    # Both read a prompt in pieces, against keys and values that are in the paged cache already.
    pieces = "true" in (options["chunked_context"], options["kv_cache_reuse"])
    facts = {**options, "parallel": world > 1, "paged_context": pieces}
    values = {
        **options,
        "weights": weights,
        "scratch": scratch,
        "output": output,
        "world_size": world,
        "max_seq_len": options["max_input_len"] + options["max_output_len"],
        "examples": release.examples,
        "folder": release.folders.get(model, model),
    }
    steps = [step for step in release.steps[model] if _applies(step, facts)]
    if options["quantization"] != "none" and not any(_mentions(step, "quantization") for step in release.steps[model]):
        raise LabError(f"release {options['release']} cannot build {model} with {options['quantization']} weights")
    if options["pp_size"] > 1 and "{pp_size}" not in str(steps):
        raise LabError(
            f"release {options['release']} spreads {model} over GPUs by tensor parallelism only",
            "it has no pipeline parallelism for this model",
            "--set pp_size=1 with a larger tp_size, or a newer --release",
        )
    return [_words(step["parts"], facts, values) for step in steps]


def check_target(manifest: Mapping[str, Any], gpu: GpuInfo) -> None:
    """Refuse an engine that was built for another machine or image.

    Args:
        manifest: the engine's, with ``hardware`` as :class:`GpuInfo` has it.

    Raises:
        LabError: lists everything that differs and matters. A newer driver or a GPU of the same compute capability
            under another name is fine.
    """
    built = manifest.get("hardware")
    if not built:
        raise LabError("the engine does not say what it was built for", "", f"labctl engines prune {manifest['key']}")
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
        raise LabError(f"the engine was built for another target ({built['gpu_name']})", "", remedy, wrong)


def _version(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(".") if not part.startswith("post"))
    except ValueError:
        raise LabError(f"'{text}' is not a version") from None


def _applies(part: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    return all(facts[key] == value for key, value in part.get("when", {}).items())


def _mentions(step: Mapping[str, Any], key: str) -> bool:
    parts = step["parts"] if isinstance(step["parts"], list) else []
    return key in step.get("when", {}) or any(key in part.get("when", {}) for part in parts if isinstance(part, dict))


def _words(parts: Any, facts: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    """Flatten the parts that apply; split first, fill then."""
    if isinstance(parts, str):
        return [word.format(**values) for word in parts.split()]
    if isinstance(parts, dict):
        return _words(parts["parts"], facts, values) if _applies(parts, facts) else []
    return [word for part in parts for word in _words(part, facts, values)]
