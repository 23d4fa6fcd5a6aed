"""The GPU memory that a stack takes: an engine's weights and least KV cache, other models' copies of the weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labbuild.random_weights import GATED, SHAPES
from labbuild.tensorrt_llm import num_tokens
from labctl.artifacts.weights import Source
from labctl.workspace import Workspace

OVERHEAD = 10**9  # bytes: CUDA, and TensorRT's workspace
COPY_OVERHEAD = 5 * 10**8  # bytes: a CUDA context of a process of its own


@dataclass(frozen=True)
class MemoryShape:
    """A model's sizes by its config.json. All results are bytes; ``width`` is the bytes of a number."""

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

    def weights(self, width: int = 2) -> int:
        hidden, heads = self.config["hidden_size"], self.config["num_attention_heads"]
        attention = 2 * hidden * heads * self._head + 2 * hidden * self._kv
        matrices = self.config["num_hidden_layers"] * (attention + 3 * hidden * self.config["intermediate_size"])
        embeddings = 2 * self.config["vocab_size"] * hidden * 2  # never quantised
        return int(matrices * width + embeddings)

    def copies(self, count: int) -> int:
        """The bytes of ``count`` models on the first GPU that each hold a copy of the weights."""
        return count * (self.weights() + COPY_OVERHEAD)

    def kv_cache(self, tokens: int, width: int = 2) -> int:
        return int(tokens * 2 * self.config["num_hidden_layers"] * self._kv * width)

    def engine(self, options: Mapping[str, Any], kv_tokens: int) -> int:
        """The bytes on each GPU of an engine with these options, whose KV cache must hold ``kv_tokens``."""
        width = 1 if options["quantization"] == "fp8" else 2
        # For each token of a step: both halves of the gated layer, and four rows of the layer's width. Upstream's own
        # figure: Llama 7B with a profile of 64 x 2048 tokens takes about 25 GB in all.
        activations = num_tokens(options) * 2 * (2 * self.config["intermediate_size"] + 4 * self.config["hidden_size"])
        whole = self.weights(width) + self.kv_cache(kv_tokens, width) + activations
        return int(whole / (options["tp_size"] * options["pp_size"])) + OVERHEAD
