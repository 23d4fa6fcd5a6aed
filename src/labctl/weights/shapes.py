"""The shapes of ``random:`` weights: real architectures at their true size (or a tiny one, for tests)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# The configuration classes' own defaults are GPT-2 small and Llama; what differs from them stands here.
# ``tokenizer`` is a folder of models/: ids beyond its vocabulary simply decode to nothing.
SHAPES: dict[str, dict[str, Any]] = {
    # GPT-2 small: 12 layers, 12 heads, 768 wide, 50257 entries, 124M parameters.
    "gpt2": {"type": "gpt2", "tokenizer": "tiny-gpt2", "config": {}},
    "tiny-gpt2": {
        "type": "gpt2",
        "tokenizer": "tiny-gpt2",
        "config": {"n_layer": 2, "n_head": 2, "n_embd": 64, "n_positions": 256, "vocab_size": 3000},
    },
}
SEED = 20240229


def fingerprint(name: str) -> str:
    """A digest of all that makes the weights of a shape."""
    return hashlib.sha256(json.dumps([SHAPES[name], SEED], sort_keys=True).encode()).hexdigest()
