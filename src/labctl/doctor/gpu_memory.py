"""What of a GPU's memory a stack takes: an engine's weights and least KV cache, other models' copies of the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from labctl.artifacts.random_weights import GATED, SHAPES
from labctl.artifacts.tensorrt_llm import num_tokens
from labctl.artifacts.weights import Source
from labctl.workspace import Workspace

OVERHEAD = 10**9  # bytes: CUDA, and TensorRT's workspace
COPY_OVERHEAD = 5 * 10**8  # bytes: a CUDA context of a process of its own


def engine_bytes(source: Source, options: Mapping[str, Any], kv_tokens: int, workspace: Workspace) -> int | None:
    """What an engine takes on each of its GPUs; None where the model's shape is not known yet.

    Args:
        options: the engine's: tp_size, pp_size, quantization, and what one step may compute.
        kv_tokens: tokens that the KV cache must hold.
    """
    shape = _shape(source, workspace)
    if shape is None:
        return None
    width = 1 if options["quantization"] == "fp8" else 2  # bytes a number
    cache = _cache(shape, kv_tokens, width)
    activations = num_tokens(options) * _activations(shape)
    return int((_weights(shape, width) + cache + activations) / (options["tp_size"] * options["pp_size"])) + OVERHEAD


def kv_bytes(source: Source, tokens: int, workspace: Workspace) -> int | None:
    """A KV cache of that many tokens in 16 bits; None where the model's shape is not known yet."""
    shape = _shape(source, workspace)
    return None if shape is None else _cache(shape, tokens, 2)


def weights_bytes(source: Source, workspace: Workspace) -> int | None:
    """The model's weights in 16 bits; None where its shape is not known yet."""
    shape = _shape(source, workspace)
    return None if shape is None else _weights(shape, 2)


def copies_bytes(source: Source, copies: int, workspace: Workspace) -> int | None:
    """What so many models take on the first GPU that each hold the weights as they are, in 16 bits."""
    one = weights_bytes(source, workspace)
    return None if one is None else copies * (one + COPY_OVERHEAD)


def _cache(shape: Mapping[str, Any], tokens: int, width: int) -> int:
    return int(tokens * 2 * shape["num_hidden_layers"] * _kv(shape) * width)


def _weights(shape: Mapping[str, Any], width: int) -> int:
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    attention = 2 * hidden * heads * _head(shape) + 2 * hidden * _kv(shape)
    matrices = shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
    embeddings = 2 * shape["vocab_size"] * hidden * 2  # never quantised
    return int(matrices * width + embeddings)


def _activations(shape: Mapping[str, Any]) -> int:
    """Bytes for each token of a step, in 16 bits: both halves of the gated layer, and four rows of the layer's width.

    Busy against upstream's own figure: Llama 7B with a profile of 64 x 2048 tokens takes about 25 GB in all.
    """
    return int(2 * (2 * shape["intermediate_size"] + 4 * shape["hidden_size"]))


def _head(shape: Mapping[str, Any]) -> int:
    return int(shape.get("head_dim") or shape["hidden_size"] // shape["num_attention_heads"])


def _kv(shape: Mapping[str, Any]) -> int:
    """Numbers of one token's keys (or values) in one layer."""
    return int(shape.get("num_key_value_heads") or shape["num_attention_heads"]) * _head(shape)


def _shape(source: Source, workspace: Workspace) -> dict[str, Any] | None:
    if source.kind == "random":
        kind, config = SHAPES[source.name]["type"], SHAPES[source.name]["config"]
    else:
        path: Path = source.locate(workspace) / "config.json"
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        kind = config.get("model_type", "")
    return {**GATED[kind], **config} if kind in GATED else None
