"""Seeded random weights of a real architecture: the right sizes and speeds, and text that means nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from labctl.errors import LabError
from labctl.weights.shapes import SEED, SHAPES
from labctl.workspace import need_space

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)


def make(shape: str, target: Path, models: Path, tell: Callable[[str], None], dtype: str = "") -> None:
    """Write config, weights (safetensors) and tokenizer of ``shape`` into ``target``; ``dtype`` "" is the shape's own.

    The same bytes on every machine with the same torch: initialised on the CPU from one seed. Needs torch and
    transformers.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    recipe = SHAPES[shape]
    tokenizer = models / recipe["tokenizer"]
    if not (tokenizer / "tokenizer.json").is_file():
        raise LabError(f"the tokenizer of random:{shape} is missing", f"{tokenizer} has no tokenizer.json")
    ends = _special_ids(tokenizer) if recipe.get("ends") else {}
    config = AutoConfig.for_model(recipe["type"], **recipe["config"], **ends)
    dtype = dtype or recipe.get("dtype", "float32")
    tell(f"initialising {shape} in {dtype}")
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype))
    need_space(target, sum(p.numel() * p.itemsize for p in model.parameters()))
    tell(f"writing {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    model.save_pretrained(target)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, target / name)


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
