"""Speculative decoding with a learner's ``lookup.py`` (exercise 06d): a step checks draft tokens beside its own."""

from collections.abc import Sequence as Batch
from typing import Any

from labserve.gpt2.decoders import CachedDecoder
from labserve.gpt2.model import GPT2
from labserve.gpt2.own import OwnFile
from labserve.gpt2.sequences import Sequence
from labserve.params import Refusal
from labserve.text.sampling import likeliest

FILE, MOST = "lookup.py", 4  # draft tokens of a step


class Lookup(CachedDecoder):
    """Asks the file for drafts, and how many of them it accepts. Only for a greedy sequence that decodes.

    vLLM: vllm/v1/spec_decode/ngram_proposer.py and vllm/v1/sample/rejection_sampler.py.
    """

    def __init__(self, model: GPT2, slots: int, own: OwnFile) -> None:
        super().__init__(model, slots)
        self._own, self._propose, self._accept = own, own.find("propose"), own.find("accept")
        self._drafts: dict[Sequence, list[int]] = {}
        self._accepted: dict[Sequence, int] = {}
        self._failed: dict[Sequence, Refusal] = {}

    def tokens(self, batch: Batch[Sequence]) -> list[int]:
        """As `Decoder`, with the draft tokens, which are proposed here."""
        self._drafts, self._accepted, self._failed = {}, {}, {}
        for sequence in batch:
            most = min(MOST, sequence.limit - len(sequence.ids) - 1)
            try:
                if self._takes_part(sequence):
                    self._drafts[sequence] = self._draft(list(sequence.ids), most) if most else []
            except Refusal as error:
                self._failed[sequence] = error
        left = zip(batch, super().tokens(batch), strict=True)
        return [count + len(self._drafts.get(sequence, ())) for sequence, count in left]

    def step(self, batch: Batch[Sequence]) -> dict[str, Any]:
        """As `Decoder`, with one token or several."""
        for sequence in batch:
            sequence.piece = ""
        for sequence, error in self._failed.items():
            sequence.fail(error)
        super().step([sequence for sequence in batch if sequence not in self._drafts and not sequence.finished])
        self._check([sequence for sequence in batch if sequence in self._drafts])
        return {
            "texts": [sequence.piece for sequence in batch],
            "guessed": [len(self._drafts.get(sequence, ())) for sequence in batch],
            "accepted": [self._accepted.get(sequence, 0) for sequence in batch],
        }

    def _takes_part(self, sequence: Sequence) -> bool:
        greedy = sequence.sampler.temperature == 0.0
        plain = greedy and sequence.rivals is None
        decodes = not sequence.new and sequence.cached == len(sequence.ids) - 1
        return plain and decodes

    def _draft(self, ids: list[int], most: int) -> list[int]:
        draft = self._own.call(self._propose, ids, most)
        size = self.vocabulary
        is_ids = isinstance(draft, list) and all(type(id) is int and 0 <= id < size for id in draft)
        self._own.require(is_ids, f"propose returned {draft!r}, which is not a list of token ids")
        self._own.require(len(draft) <= most, f"propose returned {len(draft)} draft tokens, of at most {most}")
        return [*draft]

    def _check(self, batch: Batch[Sequence]) -> None:
        """One pass over each sequence's last token and its draft."""
        if not batch:
            return
        drafts = [self._drafts[sequence] for sequence in batch]
        for sequence, draft in zip(batch, drafts, strict=True):
            sequence.ids += draft
        try:
            scores = self.logits(batch, [1 + len(draft) for draft in drafts])
        finally:
            for sequence, draft in zip(batch, drafts, strict=True):
                del sequence.ids[len(sequence.ids) - len(draft) :]
        _, tokens = likeliest(scores)
        for sequence, draft in zip(batch, drafts, strict=True):
            chosen, tokens = tokens[: 1 + len(draft)], tokens[1 + len(draft) :]
            try:
                self._take(sequence, draft, chosen)
            except Refusal as error:
                sequence.fail(error)

    def _take(self, sequence: Sequence, draft: list[int], chosen: list[int]) -> None:
        """Append the accepted tokens, and the model's own after them."""
        count = self._own.call(self._accept, list(draft), list(chosen))
        ok = type(count) is int and 0 <= count <= len(draft)
        self._own.require(ok, f"accept returned {count!r} for {len(draft)} draft tokens")
        for number, token in enumerate([*draft[:count], chosen[count]]):
            if not sequence.finished:
                sequence.piece += sequence.accept(token)
                self._accepted[sequence] = min(count, number + 1)
                sequence.cached = len(sequence.ids) - 1  # later keys and values are overwritten
