"""The NVIDIA GPU engine: TensorRT-LLM's own builder, run in the image that will serve the engine.

An engine belongs to a release, a GPU's compute capability and a driver; the manifest remembers all of them, and
:func:`check_target` refuses another machine before a server starts. The commands are data: ``trtllm/releases.yaml``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.artifacts.protocol import Builder, Option, Options, Tell
from labctl.artifacts.tensorrt_llm_commands import ROTARY, commands, rotary_dim
from labctl.trtllm import releases
from labctl.trtllm.releases import Release
from labkit.errors import LabError

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
                tell(f"step {number} of {len(steps)}: {_title(argv)}")
                builder.run(argv)
        if options["model"] in ROTARY:
            check_rotary(target, rotary_dim(weights), steps)
        return {"hardware": dict(builder.hardware), "versions": {"tensorrt_llm": options["release"]}}


def require(options: Options, gpu: GpuInfo) -> None:
    """Refuse, before minutes are spent, an engine that these GPUs cannot serve. Raises LabError."""
    world = options["tp_size"] * options["pp_size"]
    if world > gpu.gpus:
        raise LabError(
            f"the engine needs {world} GPUs, but there {'is' if gpu.gpus == 1 else 'are'} {gpu.gpus}",
            f"tp_size={options['tp_size']} times pp_size={options['pp_size']}",
            f"--set tp_size={gpu.gpus} --set pp_size=1",
        )
    release = releases.release(str(options["release"]))
    _require_chip(release, gpu)
    if options["quantization"] == "fp8" and _version(gpu.compute_capability) < FP8_SINCE:
        raise LabError(
            f"{gpu.gpu_name} does not support fp8",
            f"its compute capability is {gpu.compute_capability}; fp8 needs 8.9 or newer (Ada, Hopper)",
            "--set quantization=none",
        )


def _require_chip(release: Release, gpu: GpuInfo) -> None:
    """Refuse a chip for which the release's builder has no kernels. Raises LabError."""
    chip = _version(gpu.compute_capability)
    if chip < _version(release.oldest):
        raise LabError(
            f"{gpu.gpu_name} is too old for TensorRT-LLM",
            f"its compute capability is {gpu.compute_capability}; upstream supports {release.oldest} (Ampere) or newer",
            "--set engine=transformers",
        )
    if chip <= _version(release.newest) and gpu.compute_capability not in release.without:
        return
    later = (other for other in releases.table().values() if other.steps and chip <= _version(other.newest))
    known = next((other.name for other in later if gpu.compute_capability not in other.without), "")
    raise LabError(
        f"{gpu.gpu_name} is newer than TensorRT-LLM {release.name}",
        f"its compute capability is {gpu.compute_capability}; that release builds for {release.newest} at most"
        + (f", without {' and '.join(release.without)}" if release.without else ""),
        f"--release {known} or newer" if known else "--release 1.2.1 --set engine=llmapi, or engine=transformers",
    )


def check_rotary(engine: Path, wanted: int, steps: Sequence[Sequence[str]]) -> None:
    """Refuse an engine whose rotary dimension is not that of its weights: it would answer nonsense without an error.

    An engine of ``trtllm-build`` has it in its config.json, from the checkpoint; of ``build.py``, the command is proof.

    Raises:
        LabError: another dimension, or none.
    """
    config = json.loads((engine / "config.json").read_text(encoding="utf-8"))
    built = config.get("pretrained_config", config).get("rotary_dim")
    if built is None:
        words = [word for argv in steps for word in argv]
        built = int(words[words.index("--rotary_dim") + 1]) if "--rotary_dim" in words else None
    if built != wanted:
        raise LabError(
            f"the engine rotates {built} numbers of each head, its weights {wanted}", "it would answer nonsense"
        )


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


def _title(argv: Sequence[str]) -> str:
    return Path(argv[{"python3": 1, "run-example": 2}.get(argv[0], 0)]).name
