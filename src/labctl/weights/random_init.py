"""Seeded random weights of a real architecture: the right sizes and speeds, and text that means nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from labctl.errors import LabError
from labctl.weights.shapes import SEED, SHAPES

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)


def make(shape: str, target: Path, models: Path, report: Callable[[str], None]) -> None:
    """Write config, weights (fp32 safetensors) and tokenizer of ``shape`` into ``target``.

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
    config = AutoConfig.for_model(recipe["type"], **recipe["config"])
    report(f"initialising {shape}")
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    report(f"writing {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
    model.save_pretrained(target)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copyfile(tokenizer / name, target / name)
