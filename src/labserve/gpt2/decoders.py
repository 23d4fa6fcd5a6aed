"""The next-token logits of a batch of sequences: with a KV cache, and without one (the original's way)."""

from collections.abc import Sequence as Batch
from typing import Any

import torch

from labserve.batches import compute_together
from labserve.gpt2.kvcache import KVCache, NewPrompt, Packed, SlotRun, causal
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence
from labserve.slot_scheduler import SlotEngine
from labserve.text.logprobs import LOGPROBS, as_json, log_probs
from labserve.text.sampling import choose


class Decoder(SlotEngine):
    """What computes GPT-2's tokens. A model.py chooses the sequences of each step: any that run, in any order."""

    def logits(self, batch: Batch[Sequence]) -> torch.Tensor:
        """Scores of the next token of each sequence, [batch, vocab]."""
        raise NotImplementedError

    def describe(self) -> str:
        """How it works and what memory it may take, in one line."""
        raise NotImplementedError

    def tokens(self, batch: Batch[Sequence]) -> list[int]:
        """How many tokens the next step computes for each sequence."""
        return [len(sequence.ids) - sequence.cached for sequence in batch]

    def step(self, batch: Batch[Sequence]) -> dict[str, Any]:
        """One more token for each sequence, whose `piece` is the text that its answer carries (`Sequence.accept`).

        A sequence for which there is none has failed, and the others are not concerned. Returns fields of the step log.
        """

        def tokens(part: Batch[Sequence]) -> list[int | Exception]:
            logits = self.logits(part)
            chosen = choose(logits, [sequence.sampler for sequence in part])
            for row, (sequence, token) in enumerate(zip(part, chosen, strict=True)):
                if sequence.rivals is not None and not isinstance(token, Exception):
                    likely = log_probs(logits[row], token, sequence.rivals)
                    sequence.outputs[LOGPROBS] = as_json(likely, sequence.detokenizer.tokenizer)
            return chosen

        for sequence, token in zip(batch, compute_together(batch, tokens), strict=True):
            sequence.piece = ""
            if isinstance(token, Exception):
                sequence.fail(token)
            else:
                sequence.piece = sequence.accept(token)
        return {"texts": [sequence.piece for sequence in batch]}


class CachedDecoder(Decoder):
    """Only new tokens are computed: one of each running sequence, and what is not cached of each newcomer's prompt.

    All of them share one forward pass; keys and values stay in `cache`.
    """

    def __init__(self, model: GPT2, slots: int) -> None:
        model.pack(slots)
        self._model, self.vocabulary = model, model.vocabulary
        self.cache = KVCache(model, slots)

    def describe(self) -> str:
        return f"KV cache of {self.cache.slots} slots, {self.cache.nbytes / 2**20:,.0f} MiB at most"

    def logits(self, batch: Batch[Sequence], scored: Batch[int] | None = None) -> torch.Tensor:
        """As `Decoder`. `scored`: how many last tokens of each sequence get scores, one below the other; else one."""
        for sequence in batch:
            if sequence.slot is None:
                sequence.slot = self.cache.take()
                if sequence.slot is None:
                    raise RuntimeError(f"all {self.cache.slots} slots of the KV cache are taken")
        running = [s for s in batch if s.cached and s.cached == len(s.ids) - 1]
        running.sort(key=slot_of)
        newcomers = [s for s in batch if s.cached < len(s.ids) - 1 or not s.cached]

        ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        last: dict[int, int] = {}  # slot to the place of its sequence's last token in the pass
        prompts: list[NewPrompt] = []
        for place, sequence in enumerate(running + newcomers):
            new = sequence.ids[sequence.cached :]
            if place >= len(running):
                prompts.append(NewPrompt(len(ids), len(ids) + len(new), slot_of(sequence), sequence.cached))
            ids += new
            slots += [slot_of(sequence)] * len(new)
            positions += range(sequence.cached, len(sequence.ids))
            last[slot_of(sequence)] = len(ids) - 1
        self.cache.passes += 1
        self.cache.prompts += len(newcomers)
        device = self._model.device
        new_ids, new_slots, new_positions = torch.tensor([ids, slots, positions], device=device).unbind()
        packed = Packed(self.cache, self.cache.rows(new_slots, new_positions), self._runs(running), prompts)
        places: list[int] = []  # in the pass, of the tokens that are scored
        for sequence, count in zip(batch, scored or [1] * len(batch), strict=True):
            end = last[slot_of(sequence)] + 1
            places += range(end - count, end)
        logits = self._model.logits(new_ids, new_positions, packed.attend, torch.tensor(places, device=device))
        for sequence in batch:
            sequence.cached = len(sequence.ids)
        return logits

    def _runs(self, running: list[Sequence]) -> list[SlotRun]:
        """The running sequences, which are in the order of their slots, as runs of neighbours."""
        device = self._model.device
        runs = []
        first = 0
        for end in range(1, len(running) + 1):
            if end < len(running) and slot_of(running[end]) == slot_of(running[end - 1]) + 1:
                continue
            lengths = torch.tensor([len(sequence.ids) for sequence in running[first:end]], device=device)
            hidden = torch.arange(int(lengths.max()), device=device) >= lengths[:, None]
            mask = torch.zeros(hidden.shape, dtype=self._model.dtype, device=device)
            mask.masked_fill_(hidden, float("-inf"))
            low = slot_of(running[first])
            runs.append(SlotRun(slice(first, end), slice(low, low + end - first), mask[:, None, None]))
            first = end
        return runs

    def release(self, request: Sequence) -> None:
        if request.slot is not None:
            self.cache.free(request.slot, len(request.ids))
        request.slot, request.cached = None, 0


class RecomputingDecoder(Decoder):
    """Every text is computed from its first token again at each step, padded to the longest of the batch."""

    def __init__(self, model: GPT2) -> None:
        self._model = model

    def logits(self, batch: Batch[Sequence]) -> torch.Tensor:
        lengths = torch.tensor([len(s.ids) for s in batch])
        longest = int(lengths.max())
        # Padding stands on the right, where causal attention never looks: it needs no mask, positions count
        # from 0 in every row, and only each row's own last place is scored.
        device = self._model.device
        ids = torch.tensor([s.ids + [0] * (longest - len(s.ids)) for s in batch], device=device)
        positions = torch.arange(longest, device=device).expand_as(ids)

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return causal(query, key, value)

        return self._model.logits(ids, positions, attend, (torch.arange(len(batch)), lengths - 1))

    def describe(self) -> str:
        return "no KV cache: the whole text is computed again for each token"


def step(decoder: Decoder, batch: Batch[Sequence]) -> list[str | Exception]:
    """One more token for each sequence, as the exercises of lab 02 ask for it: its text, or why there is none."""
    decoder.step(batch)
    return [sequence.error or sequence.piece for sequence in batch]


def slot_of(sequence: Sequence) -> int:
    """The decoder's number of a sequence that it knows."""
    assert sequence.slot is not None
    return sequence.slot
