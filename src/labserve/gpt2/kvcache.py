"""Keys and values of many sequences in slots, and attention over tokens of all of them in one pass."""

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

from labserve.gpt2.model import GPT2


class KVCache:
    """A fixed number of slots, each with room for the keys and values of one sequence.

    Two tensors [layers, slots, heads, length, head_dim] are made once: memory is bounded by `nbytes`,
    whatever the clients do. (On a CPU the pages of a slot become real when a sequence first reaches them.)
    """

    def __init__(self, model: GPT2, slots: int) -> None:
        shape = (model.layers, slots, model.heads, model.context, model.width // model.heads)
        # Zeros, not empty: a masked position has weight 0, and 0 times a stray NaN would still be NaN.
        self.keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self.values = torch.zeros_like(self.keys)
        self.slots = slots
        self.passes = 0  # forward passes that used it,
        self.prompts = 0  # and prompts that they computed
        self._free = list(range(slots))

    def rows(self, slots: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Where the heads of tokens [tokens] are in a layer, taken as [slots * heads * length, head_dim]."""
        _, _, heads, length, _ = self.keys.shape
        head = torch.arange(heads, device=slots.device)
        return ((slots[:, None] * heads + head) * length + positions[:, None]).flatten()

    @property
    def nbytes(self) -> int:
        """Bytes that keys and values may take."""
        return 2 * int(self.keys.nbytes)

    @property
    def used(self) -> int:
        """Slots that are taken."""
        return self.slots - len(self._free)

    def take(self) -> int | None:
        """The lowest free slot (neighbours are read without a copy), or None."""
        return heapq.heappop(self._free) if self._free else None

    def free(self, slot: int, used: int) -> None:
        """Give a slot back. Its first `used` positions may have been written; see `__init__` for the zeros."""
        self.keys[:, slot, :, :used] = 0
        self.values[:, slot, :, :used] = 0
        heapq.heappush(self._free, slot)


class SlotRun(NamedTuple):
    """Running sequences whose slots are neighbours: their keys and values are read where they are."""

    tokens: slice  # of the pass, one of each sequence
    slots: slice
    mask: torch.Tensor  # [sequences, 1, 1, longest] 0 for a cached token that the sequence may see, else -inf


class NewPrompt(NamedTuple):
    """A newcomer, and where its tokens are in the pass; the first `cached` tokens of its prompt are in the slot."""

    start: int
    end: int
    slot: int
    cached: int


@dataclass(slots=True)
class Packed:
    """Where each token of one forward pass belongs.

    The pass has one row: first one token of each running sequence, in the order of their slots, then the
    prompts of the newcomers, one after the other.
    """

    cache: KVCache
    rows: torch.Tensor  # [tokens * heads] where the key of each token and head belongs: see `KVCache.rows`
    runs: list[SlotRun]
    prompts: list[NewPrompt]

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Attention of each token over its own sequence; everything is [tokens, heads, head_dim].

        New keys and values go to their slots. Neighbours share one call, padded to the longest of them; a newcomer
        attends causally to its own prompt, and to what was cached of it.
        """
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        for stored, new in ((keys, key), (values, value)):
            stored.view(-1, new.shape[-1]).index_copy_(0, self.rows, new.flatten(0, 1))

        outputs = []
        for tokens, slots, mask in self.runs:
            seen = slice(mask.shape[-1])
            output = scaled_dot_product_attention(
                query[tokens].unsqueeze(2), keys[slots, :, seen], values[slots, :, seen], attn_mask=mask
            )
            outputs.append(output.squeeze(2))
        for start, end, slot, cached in self.prompts:
            if cached:
                seen = slice(cached + end - start)
                prompt_keys = keys[slot, :, seen].transpose(0, 1)
                prompt_values = values[slot, :, seen].transpose(0, 1)
            else:
                prompt_keys, prompt_values = key[start:end], value[start:end]
            outputs.append(causal(query[None, start:end], prompt_keys[None], prompt_values[None])[0])
        return torch.cat(outputs) if len(outputs) > 1 else outputs[0]


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Attention within each row, to the left only; everything is [rows, tokens, heads, head_dim].

    Keys and values may begin earlier than the queries; all three end at the same token.
    """
    earlier = key.shape[1] - query.shape[1]
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if not earlier:
        return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    every_pair = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
    mask = every_pair.tril(diagonal=earlier)
    return scaled_dot_product_attention(query, key, value, attn_mask=mask).transpose(1, 2)
