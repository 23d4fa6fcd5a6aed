"""Seeded random weights of real architectures at their true size (or a tiny one, for tests).

They have the right speeds, and their text means nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from labbuild.protocol import Tell
from labkit.disk import need_space
from labkit.errors import LabError

DTYPES = ("float32", "float16", "bfloat16")
SHAPES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("shapes.yaml").read_text(encoding="utf-8"))
# The configuration classes' own values, where a model's config.json leaves one out: of architectures whose weights and
# cache the labs can count (labctl/doctor/gpu_memory.py).
USUAL: dict[str, dict[str, int]] = {
    "llama": {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "max_position_embeddings": 2048,
    },
    "gpt2": {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12},
    "codegen": {"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28},
    "gptj": {"vocab_size": 50400, "n_positions": 2048, "n_embd": 4096, "n_layer": 28},
}
SEED = 20240229
CONFIG_VERSION = 2  # of config.json as ``make`` writes it; 2: with the names of older versions of transformers
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")


def fingerprint(name: str) -> str:
    """A digest of all that makes the weights of a shape."""
    return hashlib.sha256(json.dumps([SHAPES[name], SEED, CONFIG_VERSION], sort_keys=True).encode()).hexdigest()


def tokenizer_digest(name: str, models: Path) -> str:
    """A short digest of the tokenizer that a shape borrows from the shipped models; "none" where it is missing."""
    try:
        return hashlib.sha256((models / SHAPES[name]["tokenizer"] / "tokenizer.json").read_bytes()).hexdigest()[:8]
    except OSError:
        return "none"


def make_random_weights(shape: str, target: Path, models: Path, tell: Tell, dtype: str | None = None) -> None:
    """Write config, weights (safetensors) and tokenizer of ``shape`` into ``target``.

    The data type is the shape's own, or ``dtype``.
    The same bytes on every machine with the same torch: initialised on the CPU from one seed.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    recipe = SHAPES[shape]
    tokenizer = models / recipe["tokenizer"]
    if not (tokenizer / "tokenizer.json").is_file():
        raise LabError(
            f"the tokenizer of random:{shape} is missing",
            f"{tokenizer} has no tokenizer.json",
            code="tokenizer-missing",
        )
    ends = _special_ids(tokenizer) if recipe.get("ends") else {}
    config = AutoConfig.for_model(recipe["type"], **recipe["config"], **ends)
    dtype = dtype or recipe.get("dtype", "float32")
    tell(f"initialising {shape} in {dtype}")
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    need_space(target, sum(p.numel() * p.itemsize for p in model.parameters()))
    tell(f"writing {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    model.save_pretrained(target)
    _add_older_names(target / "config.json")
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, target / name)


def _add_older_names(path: Path) -> None:
    """Add the names by which transformers before 4.56 knows the weights' type, and before 5 the rotary base.

    With transformers before 4.56, TensorRT-LLM takes the type from ``torch_dtype`` alone.
    """
    config = json.loads(path.read_text(encoding="utf-8"))
    config["torch_dtype"] = config["dtype"]
    if base := (config.get("rope_parameters") or {}).get("rope_theta"):
        config["rope_theta"] = base
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _special_ids(tokenizer: Path) -> dict[str, int | None]:
    """The tokenizer's begin, end and padding ids, as a model's configuration names them."""
    from tokenizers import Tokenizer

    named = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
    known = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    ids: dict[str, int | None] = {}
    for key in ("bos_token", "eos_token", "pad_token"):
        token = named.get(key)
        token = token["content"] if isinstance(token, dict) else token
        ids[f"{key}_id"] = known.token_to_id(token) if token else None
    return ids
