"""One decoding step for many GPT-2 sequences at once, of different lengths, with or without a KV cache.

:class:`CachedDecoder` keeps keys and values in slots. A step packs the tokens that are new (one for each running
sequence, the whole prompt for a newcomer) into a single forward pass; only attention looks at the sequences one by
one. Nothing is padded, so a newcomer costs its own tokens and nobody else's.

:class:`RecomputingDecoder` is the original tutorial's way: the whole text of every sequence through the model again
for each token, padded to the longest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoModelForCausalLM, AttentionInterface

ATTENTION = "labs_slots"


@dataclass(slots=True)
class State:
    """A sequence: its ids so far (prompt and continuation) and how many of them the KV cache holds."""

    ids: list[int]
    slot: int = -1
    cached: int = 0


@dataclass(slots=True)
class _Pack:
    """What attention needs to know of one packed step: first one token of each running row, then whole prompts."""

    keys: list[torch.Tensor]  # per layer [slots, heads, context, head_dim]
    values: list[torch.Tensor]
    rows: torch.Tensor | slice  # slots of the running rows
    slots: torch.Tensor  # the same as a tensor [running]
    positions: torch.Tensor  # [running]
    longest: int
    mask: torch.Tensor | None  # [running, 1, 1, longest], None where all are equally long
    prompts: list[tuple[int, int, int]] = field(default_factory=list)  # slot, first and end position in the pack


def _slot_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    pack: _Pack,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention over packed sequences; query, key and value are [1, heads, packed tokens, head_dim]."""
    keys, values = pack.keys[module.layer_idx], pack.values[module.layer_idx]
    parts = []
    running = len(pack.slots)
    if running:
        keys[pack.slots, :, pack.positions] = key[0, :, :running].transpose(0, 1)
        values[pack.slots, :, pack.positions] = value[0, :, :running].transpose(0, 1)
        rows = scaled_dot_product_attention(
            query[0, :, :running].transpose(0, 1).unsqueeze(2),
            keys[pack.rows, :, : pack.longest],
            values[pack.rows, :, : pack.longest],
            attn_mask=pack.mask,
            scale=scaling,
        )
        parts.append(rows.squeeze(2))
    for slot, first, end in pack.prompts:
        keys[slot, :, : end - first] = key[0, :, first:end]
        values[slot, :, : end - first] = value[0, :, first:end]
        whole = scaled_dot_product_attention(
            query[:, :, first:end], key[:, :, first:end], value[:, :, first:end], is_causal=True, scale=scaling
        )
        parts.append(whole[0].transpose(0, 1))
    return torch.cat(parts).unsqueeze(0), None  # [1, packed tokens, heads, head_dim]


AttentionInterface.register(ATTENTION, _slot_attention)


class CachedDecoder:
    """GPT-2 with a KV cache of ``slots`` sequences.

    Memory is taken once: 2 x layers x slots x context x width x 4 bytes (``bytes``), whatever is asked of it later.
    """

    def __init__(self, model_path: str, slots: int, device: str = "cpu") -> None:
        self.model = load(model_path, ATTENTION, device)
        config = self.model.config
        self.context = int(config.n_positions)
        shape = (slots, config.n_head, self.context, config.n_embd // config.n_head)
        self._keys = [torch.zeros(shape, device=device) for _ in range(config.n_layer)]
        self._values = [torch.zeros(shape, device=device) for _ in range(config.n_layer)]
        self.bytes = sum(t.numel() * t.element_size() for t in (*self._keys, *self._values))
        self.slots = slots
        self._free = set(range(slots))
        self._device = device

    @property
    def used(self) -> int:
        return self.slots - len(self._free)

    def release(self, state: State) -> None:
        """Give a sequence's slot back."""
        if state.slot >= 0:
            self._free.add(state.slot)
            state.slot, state.cached = -1, 0

    @torch.inference_mode()
    def step(self, states: Sequence[State]) -> torch.Tensor:
        """Logits [rows, vocab] for the next token of every sequence.

        Raises:
            LookupError: more newcomers than free slots.
        """
        for state in states:
            if state.slot < 0:
                if not self._free:
                    raise LookupError("no free KV cache slot")
                state.slot = min(self._free)  # lowest first: rows next to each other need no copy
                self._free.remove(state.slot)
        running = sorted((s for s in states if s.cached), key=lambda s: s.slot)
        newcomers = [s for s in states if not s.cached]
        packed = [*running, *newcomers]
        tokens = [id_ for state in packed for id_ in state.ids[state.cached :]]
        positions = [p for state in packed for p in range(state.cached, len(state.ids))]
        hidden = self.model.transformer(
            input_ids=torch.tensor([tokens], device=self._device),
            position_ids=torch.tensor([positions], device=self._device),
            use_cache=False,
            pack=self._pack(running, newcomers),
        ).last_hidden_state[0]
        lasts = torch.tensor([len(s.ids) - s.cached for s in packed]).cumsum(0) - 1
        order = {id(state): row for row, state in enumerate(packed)}
        rows = lasts[[order[id(state)] for state in states]].to(self._device)
        for state in states:
            state.cached = len(state.ids)
        logits: torch.Tensor = self.model.lm_head(hidden[rows])
        return logits

    def _pack(self, running: Sequence[State], newcomers: Sequence[State]) -> _Pack:
        slots = [s.slot for s in running]
        positions = torch.tensor([s.cached for s in running], device=self._device)
        longest = max((s.cached + 1 for s in running), default=0)
        mask = None
        if running and any(s.cached + 1 != longest for s in running):
            seen = torch.arange(longest, device=self._device) <= positions[:, None]
            mask = torch.zeros(seen.shape, device=self._device).masked_fill_(~seen, float("-inf"))[:, None, None]
        adjacent = bool(slots) and slots[-1] - slots[0] + 1 == len(slots)
        index = torch.tensor(slots, dtype=torch.long, device=self._device)
        pack = _Pack(
            self._keys, self._values, slice(slots[0], slots[-1] + 1) if adjacent else index, index, positions,
            longest, mask,
        )  # fmt: skip
        first = len(running)
        for state in newcomers:
            pack.prompts.append((state.slot, first, first + len(state.ids)))
            first += len(state.ids)
        return pack


class RecomputingDecoder:
    """GPT-2 without a cache, as the original does it: everything again for each token, logits at every position."""

    bytes = 0
    slots = 0
    used = 0

    def __init__(self, model_path: str, device: str = "cpu") -> None:
        self.model = load(model_path, "sdpa", device)
        self.context = int(self.model.config.n_positions)
        self._device = device

    def release(self, state: State) -> None:
        """Nothing is kept, so there is nothing to give back."""

    @torch.inference_mode()
    def step(self, states: Sequence[State]) -> torch.Tensor:
        """Logits [rows, vocab] for the next token of every sequence."""
        lengths = [len(state.ids) for state in states]
        width = max(lengths)
        ids = torch.tensor([s.ids + [0] * (width - len(s.ids)) for s in states], device=self._device)
        mask = (torch.arange(width) < torch.tensor(lengths)[:, None]).long().to(self._device)
        # Padding stands to the right, where no real token can see it; positions count from the left as always.
        logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        rows: torch.Tensor = logits[torch.arange(len(states)), torch.tensor(lengths) - 1]
        return rows


Decoder = CachedDecoder | RecomputingDecoder


def load(model_path: str, attention: str, device: str) -> Any:
    """A GPT-2 in fp32, ready to serve."""
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation=attention)
    return model.eval().to(device)
