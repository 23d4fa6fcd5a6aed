"""The sizes of a model that a server needs, and the room for its keys and values where no setting says how much."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from labsched.kv_budget import VLLM_OVERHEAD, KVBudget

CPU_MIB = 1024  # of a KV cache


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


def kv_budget(
    word: Callable[[str], str], shape: ModelShape, batch: int, device: str, token_bytes: int, block_size: int
) -> KVBudget:
    """The KV cache that a model may fill, by its configuration's words.

    Without ``kv_cache_memory_mib``, a GPU gives what is free beside the weights, and no more than ``batch`` of the
    model's longest sequences fill: a small model gets a small cache (doctor/gpu_memory.py counts alike).

    Args:
        word: a parameter of the model's config.pbtxt, "" if there is none.
        device: "cpu" or "cuda:N".
        token_bytes: of keys and values.

    Raises:
        ValueError: it has no room for one block.
    """
    tokens, mib = word("max_tokens_in_paged_kv_cache"), word("kv_cache_memory_mib")
    memory = int(mib or CPU_MIB) * 2**20
    if not mib and device != "cpu":
        most = batch * shape.context
        weights = _weights_bytes(word("gpt_model_path")) // int(word("tp_size") or 1)  # a rank's share
        weights += _weights_bytes(word("draft_model")) if word("draft_model") else 0
        tokens = str(min(most, int(tokens or most)))
        memory = max(0, _free_bytes(device) - weights - VLLM_OVERHEAD)
    share = word("kv_cache_free_gpu_mem_fraction")
    return KVBudget.of(tokens, share, memory=memory, token_bytes=token_bytes, block_size=block_size)


def _weights_bytes(folder: str) -> int:
    files = list(Path(folder).glob("*.safetensors")) or list(Path(folder).glob("*.bin"))
    return sum(file.stat().st_size for file in files)


def _free_bytes(device: str) -> int:
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return int(free)
