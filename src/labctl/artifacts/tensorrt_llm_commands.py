"""The commands that build a TensorRT-LLM engine, from the release's own list of them (``trtllm/releases.yaml``)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labctl.artifacts.protocol import Options
from labctl.artifacts.random_weights import SHAPES
from labctl.artifacts.weights import Source
from labctl.trtllm import releases
from labkit.errors import LabError

ROTARY = ("gptj", "codegen")  # models whose rotary dimension is not the width of a head
FOUND_LATER = "<rotary_dim, read from config.json>"  # of weights that are not there yet


def commands(
    options: Options, weights: Path, scratch: Path, output: Path, source: Source | None = None
) -> list[list[str]]:
    """The exact commands that build one engine, in order.

    Args:
        source: what the weights will be, where they may not be there yet.

    Raises:
        LabError: the release is unknown, or has no way to build that model like that.
    """
    model = str(options["model"])
    if model == "codegen":  # the same architecture, its weights in another order
        reordered = scratch / "gptj"
        step = ["python3", "-m", "labserve.codegen.as_gptj", str(weights), str(reordered)]
        built = _commands({**options, "model": "gptj"}, reordered, scratch, output, _rotary_word(weights, source))
        return [step, *built]
    return _commands(options, weights, scratch, output, _rotary_word(weights, source) if model in ROTARY else "")


def _commands(options: Options, weights: Path, scratch: Path, output: Path, rotary: str) -> list[list[str]]:
    release, model = releases.release(str(options["release"])), str(options["model"])
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
        "max_num_tokens": num_tokens(options),
        "rotary_dim": rotary,
        "examples": release.examples[0],
        "folder": release.folders.get(model, model),
    }
    steps = [step for step in release.steps[model] if _applies(step, facts)]
    if options["quantization"] != "none" and not any(_mentions(step, "quantization") for step in release.steps[model]):
        raise LabError(f"release {options['release']} cannot build {model} with {options['quantization']} weights")
    if options["pp_size"] > 1 and "{pp_size}" not in str(steps):
        raise LabError(
            f"release {options['release']} divides {model} among GPUs by tensor parallelism only",
            "it has no pipeline parallelism for this model",
            "--set pp_size=1 with a larger tp_size, or a newer --release",
        )
    return [_example(_words(step["parts"], facts, values), release.examples) for step in steps]


def num_tokens(options: Options) -> int:
    """The tokens that one step of the engine may compute: ``max_num_tokens``, or with 0 a whole batch of the longest.

    Static batching (V1) computes all prompts of a batch in one step, and so needs the latter.
    """
    most = int(options["max_batch_size"]) * int(options["max_input_len"])
    return min(int(options["max_num_tokens"]), most) or most


def rotary_dim(weights: Path) -> int:
    """What of each head GPT-J and CodeGen rotate, of the folder's config.json. Raises LabError where it has none."""
    dimension = json.loads((weights / "config.json").read_text(encoding="utf-8")).get("rotary_dim")
    if not isinstance(dimension, int):
        raise LabError(f"{weights / 'config.json'} has no rotary_dim", "GPT-J and CodeGen are built with it")
    return dimension


def _rotary_word(weights: Path, source: Source | None) -> str:
    """The same as a word of a command; weights that are to be made are known by their shape."""
    if (weights / "config.json").is_file():
        return str(rotary_dim(weights))
    if source and source.kind == "random" and "rotary_dim" in SHAPES[source.name]["config"]:
        return str(SHAPES[source.name]["config"]["rotary_dim"])
    return FOUND_LATER


def _example(argv: list[str], folders: Sequence[str]) -> list[str]:
    """Where the examples may be in one of several folders, the image's own command looks for the script."""
    start = f"{folders[0]}/"
    if len(folders) == 1 or not argv[1].startswith(start):
        return argv
    return ["run-example", ":".join(folders), argv[1].removeprefix(start), *argv[2:]]


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
