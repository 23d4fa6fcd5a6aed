"""The values of a model's config.json that a server needs."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of a decoder-only model, whichever words its config.json has for them."""

    vocabulary: int
    context: int  # tokens, prompt and output
    token_values: int  # numbers in the keys and values of one token
    end_id: int | None = None  # the token that ends a text, as the model was trained
    head_dim: int = 0  # numbers of one attention head

    @classmethod
    def of(cls, folder: str) -> "ModelShape":
        """Read `config.json` of a model's folder. Raises OSError, ValueError or KeyError."""
        config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))

        def first(*names: str) -> int:
            return int(next(config[name] for name in names if config.get(name)))

        heads = first("num_attention_heads", "n_head")
        head_dim = config.get("head_dim") or first("hidden_size", "n_embd") // heads
        kv_heads = config.get("num_key_value_heads") or heads
        layers = first("num_hidden_layers", "n_layer")
        context = first("max_position_embeddings", "n_positions")
        end = config.get("eos_token_id")
        end = end[0] if isinstance(end, list) else end
        return cls(int(config["vocab_size"]), context, 2 * layers * kv_heads * head_dim, end, head_dim)
