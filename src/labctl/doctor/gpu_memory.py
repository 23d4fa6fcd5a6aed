"""The GPU memory that a stack takes: copies of the weights, and the KV cache as its server reserves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labbuild.random_weights import SHAPES, USUAL
from labctl.artifacts.weights import Source
from labctl.lab import Served
from labctl.settings import format_setting
from labctl.workspace import Workspace
from labsched.kv_budget import NULL_BLOCKS, VLLM_OVERHEAD, KVBudget, number_bytes

COPY_OVERHEAD = 5 * 10**8  # bytes: a CUDA context of a process of its own
NUMBER = 2  # bytes of a number of the weights, which are in 16 bits
BLOCK_SIZE = 32  # tokens in a block of the KV cache, where no setting says it


@dataclass(frozen=True)
class MemoryShape:
    """A model's sizes, by its config.json.

    ``stored``: the bytes of weights that are quantized (AWQ, GPTQ, fp8), which vLLM keeps as they are; else None.
    """

    kind: str
    config: Mapping[str, Any]
    stored: int | None = None

    @classmethod
    def of(cls, source: Source, workspace: Workspace) -> MemoryShape | None:
        """None if it is not known: the weights are not here yet, or their architecture is another one."""
        stored = None
        if source.kind == "random":
            kind, config = SHAPES[source.name]["type"], SHAPES[source.name]["config"]
        else:
            path: Path = source.locate(workspace) / "config.json"
            config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            kind = config.get("model_type", "")
            if "quantization_config" in config:
                stored = sum(file.stat().st_size for file in path.parent.glob("*.safetensors"))
        return cls(kind, {**USUAL[kind], **config}, stored) if kind in USUAL else None

    @property
    def context(self) -> int:
        """Tokens of the longest sequence."""
        return int(self.config.get("n_positions") or self.config["max_position_embeddings"])

    @property
    def _head(self) -> int:
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"])

    @property
    def token_values(self) -> int:
        """Numbers in the keys and values of one token."""
        if self.kind != "llama":
            return int(2 * self.config["n_layer"] * self.config["n_embd"])
        heads = self.config.get("num_key_value_heads") or self.config["num_attention_heads"]
        return int(2 * self.config["num_hidden_layers"] * heads * self._head)

    @property
    def parameters(self) -> int:
        """How many numbers the weights are, without biases and norms (less than a thousandth of a large model)."""
        config = self.config
        if self.kind != "llama":
            width = config["n_embd"]
            ends = config["vocab_size"] + config["n_positions"] if self.kind == "gpt2" else 2 * config["vocab_size"]
            return int(12 * config["n_layer"] * width**2 + ends * width)
        hidden, layers = config["hidden_size"], config["num_hidden_layers"]
        attention = 2 * hidden * config["num_attention_heads"] * self._head + self.token_values // layers * hidden
        layer = attention + 3 * hidden * config["intermediate_size"]
        return int(layers * layer + 2 * config["vocab_size"] * hidden)

    @property
    def weights(self) -> int:
        """Bytes of one copy: in 16 bits, or quantized."""
        return self.stored or self.parameters * NUMBER

    def engine_cache(self, settings: Mapping[str, Any], room: int | None) -> tuple[int, int]:
        """The tokens that an engine's KV cache is for, and the bytes that it takes: whole blocks, as the server counts.

        Args:
            room: bytes that are free beside all else; None where it is not known. A cache that takes what is free is
                counted for one longest sequence at least.

        Raises ValueError: not one block fits.
        """
        number = number_bytes(bool(settings.get("exact")), str(settings.get("kv_cache_dtype") or "auto"))
        token_bytes, bound = self.token_values * number // ranks_of(settings), settings["max_tokens_in_paged_kv_cache"]
        share, mib = float(settings["kv_cache_free_gpu_mem_fraction"]), settings["kv_cache_memory_mib"]
        if mib is None:  # as labserve/model_shape.py
            most = int(settings["max_num_sequences"]) * self.context
            bound = min(most, int(bound or most))
            memory = max(room or 0, int(min(bound, self.context) * token_bytes / share) + 1)
        else:
            memory = int(mib) * 2**20
        kv = KVBudget.of(
            format_setting(bound),
            str(share),
            memory=memory,
            token_bytes=token_bytes,
            block_size=int(settings.get("block_size", BLOCK_SIZE)),
        )
        spare = NULL_BLOCKS if settings.get("engine") == "vllm" else int(settings["max_num_sequences"])
        return kv.tokens, kv.reserved(token_bytes, spare)


def ranks_of(settings: Mapping[str, Any]) -> int:
    """The GPUs that share an engine: each has a part of the weights, and of each token's keys and values."""
    return int(settings.get("tp_size") or 1)


def memory_parts(
    shape: MemoryShape, served: Served, settings: Mapping[str, Any], free: int | None, total: int | None
) -> dict[str, int]:
    """The bytes that each part of a stack takes on a GPU; the KV cache is the last one.

    Args:
        free, total: bytes of the GPU; None where they are not known.

    Raises ValueError: not one block of the KV cache fits.
    """
    copies, vllm, ranks = served.copies, settings.get("engine") == "vllm", ranks_of(settings)
    fp32 = bool(settings.get("exact")) or settings.get("precision") == "fp32"
    wide = fp32 * (1 if "max_num_sequences" in settings else copies)  # copies in 32 bits: the engine's, or all
    name = f"{copies} copies of the weights" if copies > 1 else "the weights"
    elsewhere = (1 + wide) * shape.weights * (ranks - 1) // ranks  # of the engine's copy
    parts = {
        f"{name}, one in {ranks} shares" if ranks > 1 else name: (copies + wide) * shape.weights - elsewhere,
        "CUDA, graphs and activations": (copies - vllm) * COPY_OVERHEAD + vllm * VLLM_OVERHEAD,
    }
    left = None if free is None else free - sum(parts.values())
    if served.vllm:  # the share of the whole card that vLLM takes by itself, with the weights in it
        share = served.vllm["gpu_memory_utilization"]
        size = shape.context * shape.token_values * NUMBER
        if total is not None:
            size = max(size, int(share * total) - sum(parts.values()))
        tokens = size // (shape.token_values * NUMBER)
    elif "max_num_sequences" in settings:
        tokens, size = shape.engine_cache(settings, left)
    else:
        tokens = served.kv_sequences * shape.context
        size = tokens * shape.token_values * NUMBER * (1 + fp32)
        if mib := settings.get("kv_cache_memory_mib"):
            size = min(size, int(mib) * 2**20)
            tokens = size // (shape.token_values * NUMBER * (1 + fp32))
    return {**parts, f"the KV cache of {tokens:,} tokens": size}
