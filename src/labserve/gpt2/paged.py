"""A KV cache in blocks, whose block manager is a learner's ``blocks.py`` (exercises 02d to 02f)."""

import itertools
from collections.abc import Sequence as Batch
from typing import Any

import torch

from labserve.gpt2.decoders import Decoder, slot_of
from labserve.gpt2.kvcache import causal
from labserve.gpt2.model import GPT2
from labserve.gpt2.own import OwnFile
from labserve.gpt2.sequences import Sequence

FILE, SIZE = "blocks.py", 16  # tokens of a block


class PagedDecoder(Decoder):
    """Keys and values are where the block tables say, so a table that is wrong gives wrong tokens.

    Tensors are [layers, blocks, heads, SIZE, head_dim]; memory is bounded by `blocks`. Requests with one prompt that
    join in one step compute it once, and fork (vLLM's parallel sampling).
    """

    def __init__(self, model: GPT2, blocks: int, own: OwnFile) -> None:
        model.pack(8)
        self._model, self._own, self.blocks = model, own, blocks
        self._manager = own.call(own.find("Blocks"), blocks, SIZE)
        shape = (model.layers, blocks, model.heads, SIZE, model.width // model.heads)
        self._keys = torch.zeros(shape, dtype=model.dtype, device=model.device)
        self._values = torch.zeros_like(self._keys)
        self._numbers = itertools.count(1)  # the manager's names of sequences; kept as `slot`
        self._tokens: dict[int, int] = {}  # of each sequence, for which it has blocks
        self._tables: dict[int, list[int]] = {}
        self._copied = 0
        self._found: dict[str, int] = {}  # tokens that a newcomer found, by its name

    def describe(self) -> str:
        nbytes = 2 * self._keys.nbytes
        return f"KV cache of {self.blocks} blocks of {SIZE} tokens, {nbytes / 2**20:,.0f} MiB, by {FILE}"

    def step(self, batch: Batch[Sequence]) -> dict[str, Any]:
        left = self.tokens(batch)
        fields = super().step(batch)
        used = len({block for table in self._tables.values() for block in table})
        found, self._found = [self._found.pop(sequence.name, 0) for sequence in batch], {}
        copied, self._copied = self._copied, 0
        blocks = {"kv_blocks": self.blocks, "kv_blocks_used": used, "cached": found, "copied": copied}
        # What was cached is known only after the blocks were taken.
        tokens = [count - cached for count, cached in zip(left, found, strict=True)]
        return {**fields, **blocks, "tokens": tokens}

    def logits(self, batch: Batch[Sequence]) -> torch.Tensor:
        """Scores of the next token of each sequence, [batch, vocab]. Raises Refusal if the manager fails."""
        twins = self._take_blocks(batch)
        computed = [sequence for sequence in batch if sequence not in twins]
        ids: list[int] = []
        positions: list[int] = []
        places: list[tuple[int, int]] = []  # block, and place in it
        for sequence in computed:
            table = self._tables[slot_of(sequence)]
            ids += sequence.ids[sequence.cached :]
            positions += range(sequence.cached, len(sequence.ids))
            places += [(table[at // SIZE], at % SIZE) for at in range(sequence.cached, len(sequence.ids))]
        ends = list(itertools.accumulate(len(sequence.ids) - sequence.cached for sequence in computed))
        where = torch.tensor(places, device=self._model.device)
        rows = {sequence: row for row, sequence in enumerate(computed)}

        def attend(layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            """Each token over its own sequence; new keys and values go to their blocks first."""
            self._keys[layer, where[:, 0], :, where[:, 1]] = key
            self._values[layer, where[:, 0], :, where[:, 1]] = value
            outputs, start = [], 0
            for sequence, end in zip(computed, ends, strict=True):
                table = self._tables[slot_of(sequence)]
                tokens = slice(len(sequence.ids))
                keys = self._keys[layer, table].transpose(1, 2).flatten(0, 1)[None, tokens]
                values = self._values[layer, table].transpose(1, 2).flatten(0, 1)[None, tokens]
                outputs.append(causal(query[None, start:end], keys, values)[0])
                start = end
            return torch.cat(outputs)

        wanted = torch.tensor([end - 1 for end in ends], device=self._model.device)
        new = torch.tensor([ids, positions], device=self._model.device)
        scores = self._model.logits(new[0], new[1], attend, wanted)
        for sequence in batch:
            sequence.cached = len(sequence.ids)
        return scores[[rows[twins.get(sequence, sequence)] for sequence in batch]]

    def _take_blocks(self, batch: Batch[Sequence]) -> dict[Sequence, Sequence]:
        """Blocks for what is new of each. Returns those whose prompt another one computes in this step."""
        twins: dict[Sequence, Sequence] = {}
        first: dict[tuple[int, ...], Sequence] = {}
        for sequence in batch:
            if sequence.slot is None:
                other = first.setdefault(tuple(sequence.ids), sequence)
                self._begin(sequence, other)
                if other is not sequence:
                    twins[sequence] = other
            elif self._tokens[sequence.slot] < len(sequence.ids):
                copy = self._own.call(self._manager.append, sequence.slot, sequence.ids[-1])
                self._read_table(sequence)
                if copy is not None:
                    self._copy(copy)
        return twins

    def _begin(self, sequence: Sequence, other: Sequence) -> None:
        number, count = next(self._numbers), len(sequence.ids)
        if other is sequence:
            cached = self._own.call(self._manager.allocate, number, list(sequence.ids))
            self._own.require(type(cached) is int and 0 <= cached < count, f"allocate returned {cached!r}")
            sequence.cached = self._found[sequence.name] = cached
        else:
            self._own.call(self._manager.fork, other.slot, number)
            self._found[sequence.name] = count
        sequence.slot = number
        self._read_table(sequence)

    def _read_table(self, sequence: Sequence) -> None:
        number, needed = slot_of(sequence), -(-len(sequence.ids) // SIZE)
        table = self._own.call(lambda: [int(block) for block in self._manager.table(number)])
        inside = all(0 <= block < self.blocks for block in table)
        self._own.require(inside and len(table) == needed, f"table({number}) is {table}; {needed} blocks are needed")
        self._tables[number], self._tokens[number] = table, len(sequence.ids)

    def _copy(self, copy: Any) -> None:
        is_pair = isinstance(copy, tuple) and len(copy) == 2
        known = is_pair and all(type(block) is int and 0 <= block < self.blocks for block in copy)
        self._own.require(known, f"append returned {copy!r}")
        source, target = copy
        self._keys[:, target] = self._keys[:, source]
        self._values[:, target] = self._values[:, source]
        self._copied += 1

    def release(self, request: Sequence) -> None:
        """Give the blocks of a sequence back; harmless where it has none. Raises Refusal if the manager fails."""
        number, request.slot, request.cached = request.slot, None, 0
        if number is not None and self._tables.pop(number, None) is not None:
            self._tokens.pop(number, None)
            self._own.call(self._manager.free, number)
