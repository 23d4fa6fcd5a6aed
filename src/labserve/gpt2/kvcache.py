"""Keys and values of many sequences in slots, and attention over tokens of all of them in one pass."""

import heapq
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface


class KVCache:
    """A fixed number of slots, each with room for the keys and values of one sequence.

    Two tensors [layers, slots, heads, length, head_dim] are made once: memory is bounded by `nbytes`,
    whatever the clients do. (On a CPU the pages of a slot become real when a sequence first reaches them.)
    """

    def __init__(self, model: Any, slots: int, length: int) -> None:
        config = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, slots, heads, length, head_dim)
        # Zeros, not empty: a masked position has weight 0, and 0 times a stray NaN would still be NaN.
        self.keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.values = torch.zeros_like(self.keys)
        self.slots = slots
        self._free = list(range(slots))

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values may take."""
        return 2 * int(self.keys.nbytes)

    def take(self) -> int | None:
        """The lowest free slot (neighbours are read without a copy), or None."""
        return heapq.heappop(self._free) if self._free else None

    def free(self, slot: int) -> None:
        """Give a slot back."""
        heapq.heappush(self._free, slot)


@dataclass(slots=True)
class Packed:
    """Where each token of one forward pass belongs.

    The pass has one row: first one token of each running sequence, in the order of their slots, then the
    prompts of the newcomers, one after the other.
    """

    cache: KVCache
    slots: torch.Tensor  # [tokens] the slot of each token
    positions: torch.Tensor  # [tokens] its place in its sequence
    rows: slice | torch.Tensor  # the slots of the running sequences: a view where they are neighbours
    mask: torch.Tensor | None  # [running, 1, 1, longest] which cached tokens each may see; None: nobody runs
    prompts: list[tuple[int, int]]  # start and end of each newcomer's tokens


def packed_attention(
    module: Any,
    query: torch.Tensor,  # [1, heads, tokens, head_dim]
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    packed: Packed,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of each token over its own sequence; returns [1, tokens, heads, head_dim].

    New keys and values go to their slots. Running sequences share one call, padded to the longest of them;
    a newcomer attends causally to its own prompt.
    """
    keys, values = packed.cache.keys[module.layer_idx], packed.cache.values[module.layer_idx]
    keys[packed.slots, :, packed.positions] = key[0].transpose(0, 1)
    values[packed.slots, :, packed.positions] = value[0].transpose(0, 1)

    grouped = query.shape[1] != key.shape[1]  # several query heads share one key head (not in GPT-2)
    outputs = []
    if packed.mask is not None:
        running, _, _, longest = packed.mask.shape
        seen = scaled_dot_product_attention(
            query[0, :, :running].transpose(0, 1).unsqueeze(2),
            keys[:, :, :longest][packed.rows],
            values[:, :, :longest][packed.rows],
            attn_mask=packed.mask,
            scale=scaling,
            enable_gqa=grouped,
        )
        outputs.append(seen.squeeze(2))
    for start, end in packed.prompts:
        own = slice(start, end)
        seen = scaled_dot_product_attention(
            query[:, :, own],
            key[:, :, own],
            value[:, :, own],
            is_causal=True,
            scale=scaling,
            enable_gqa=grouped,
        )
        outputs.append(seen[0].transpose(0, 1))
    return torch.cat(outputs).unsqueeze(0), None


# With this name as its implementation, a transformers model makes no mask of its own.
AttentionInterface.register("packed", packed_attention)
