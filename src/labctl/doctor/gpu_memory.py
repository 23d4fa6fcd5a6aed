"""The GPU memory that a stack takes: copies of the weights, and the KV cache as its server reserves it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labbuild.random_weights import GATED, SHAPES
from labctl.artifacts.weights import Source
from labctl.workspace import Workspace
from labsched.kv_budget import KVBudget

COPY_OVERHEAD = 5 * 10**8  # bytes: a CUDA context of a process of its own
NUMBER = 2  # bytes of a number: weights, keys and values are in 16 bits
BLOCK_SIZE = 32  # tokens in a block of the KV cache, where no setting says it


@dataclass(frozen=True)
class MemoryShape:
    """A model's sizes in bytes, by its config.json."""

    config: Mapping[str, Any]

    @classmethod
    def of(cls, source: Source, workspace: Workspace) -> MemoryShape | None:
        """None if it is not known: the weights are not here yet, or their architecture is another one."""
        if source.kind == "random":
            kind, config = SHAPES[source.name]["type"], SHAPES[source.name]["config"]
        else:
            path: Path = source.locate(workspace) / "config.json"
            config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
            kind = config.get("model_type", "")
        return cls({**GATED[kind], **config}) if kind in GATED else None

    @property
    def _head(self) -> int:
        return int(self.config.get("head_dim") or self.config["hidden_size"] // self.config["num_attention_heads"])

    @property
    def _kv(self) -> int:
        """Numbers of one token's keys (or values) in one layer."""
        return int(self.config.get("num_key_value_heads") or self.config["num_attention_heads"]) * self._head

    @property
    def weights(self) -> int:
        hidden, heads = self.config["hidden_size"], self.config["num_attention_heads"]
        attention = 2 * hidden * heads * self._head + 2 * hidden * self._kv
        layer = attention + 3 * hidden * self.config["intermediate_size"]
        return int(self.config["num_hidden_layers"] * layer + 2 * self.config["vocab_size"] * hidden) * NUMBER

    def copies(self, count: int) -> int:
        """What ``count`` models on the first GPU take that each hold a copy of the weights."""
        return count * (self.weights + COPY_OVERHEAD)

    def kv_cache(self, settings: Mapping[str, Any]) -> tuple[int, int]:
        """The tokens that a stack's KV cache is for, and the bytes that it takes: whole blocks, as the server counts.

        Raises ValueError: not one block fits.
        """
        token_bytes = 2 * self.config["num_hidden_layers"] * self._kv * NUMBER
        kv = KVBudget.of(
            str(settings["max_tokens_in_paged_kv_cache"]),
            str(settings["kv_cache_free_gpu_mem_fraction"]),
            memory=int(settings["kv_cache_memory_mib"]) * 2**20,
            token_bytes=token_bytes,
            block_size=int(settings.get("block_size", BLOCK_SIZE)),
        )
        return kv.tokens, kv.tokens * token_bytes
