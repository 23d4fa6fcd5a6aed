"""What of a GPU's memory an engine takes: its weights, the least KV cache it can do with, and CUDA around them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labctl import weights
from labctl.weights import Source
from labctl.weights.shapes import SHAPES
from labctl.workspace import Workspace

OVERHEAD = 2 * 10**9  # bytes: CUDA, TensorRT's activations and workspace
# The configuration class's own values (Llama-2 7B), where a model's config.json leaves one out.
LLAMA = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32,
}  # fmt: skip


def needed(source: Source, options: Mapping[str, Any], kv_tokens: int, workspace: Workspace) -> int | None:
    """Bytes on each GPU; None where the model's shape is not known yet.

    Args:
        options: the engine's: tp_size, pp_size, quantization.
        kv_tokens: tokens that the KV cache must hold.
    """
    shape = _shape(source, workspace)
    if shape is None:
        return None
    width = 1 if options["quantization"] == "fp8" else 2  # bytes a number
    hidden, layers, heads = shape["hidden_size"], shape["num_hidden_layers"], shape["num_attention_heads"]
    head = shape.get("head_dim") or hidden // heads
    kv = (shape.get("num_key_value_heads") or heads) * head
    attention = 2 * hidden * heads * head + 2 * hidden * kv
    matrices = layers * (attention + 3 * hidden * shape["intermediate_size"])
    embeddings = 2 * shape["vocab_size"] * hidden * 2  # never quantised
    cache = kv_tokens * 2 * layers * kv * width
    return int((matrices * width + embeddings + cache) / (options["tp_size"] * options["pp_size"])) + OVERHEAD


def _shape(source: Source, workspace: Workspace) -> dict[str, Any] | None:
    config: Mapping[str, Any] | None = None
    if source.kind == "random":
        config = SHAPES[source.name]["config"] if SHAPES[source.name]["type"] == "llama" else None
    else:
        path: Path = weights.locate(source, workspace) / "config.json"
        if path.is_file():
            read = json.loads(path.read_text(encoding="utf-8"))
            config = read if read.get("model_type") == "llama" else None
    return None if config is None else {**LLAMA, **config}
