"""Blocks of a KV cache that sequences share (vLLM: `BlockPool`, vllm/v1/core/block_pool.py; Kwon et al., SOSP 2023).

A block is known by all tokens up to its end, so a prompt finds the blocks of its beginning, whichever sequence
computed them. A sequence holds a block at most once. A block that no sequence holds stays as it is until its memory is
needed. It counts as free, and the one that was used longest ago is overwritten first.

This is an account without memory of its own. It follows OpenVINO's block manager, because that one does not tell what
it finds in its cache.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Block:
    """One block (vLLM: `KVCacheBlock`, vllm/v1/core/kv_cache_utils.py).

    `key` stands for its tokens and all before them; `used` says when it was last taken, in counted uses.

    It is known by its key as soon as it is taken; `ready` says whether all of these tokens are in it yet.
    """

    used: int
    key: int = 0
    holders: int = 0
    ready: bool = True


@dataclass(slots=True)
class _BlockTable:
    """The block table of one sequence (vLLM: `_BlockTable`, vllm/v1/worker/block_table.py).

    `tokens` are in its blocks; `keys` are those of the full ones. The sequence decodes as soon as `prompt` tokens are
    there.
    """

    blocks: list[Block]
    tokens: int
    prompt: int
    keys: list[int] = field(default_factory=list)


class Blocks:
    """`count` blocks of `size` tokens each (vLLM: `BlockPool`)."""

    def __init__(self, count: int, size: int) -> None:
        self.size = size
        self._uses = count
        self._untouched = iter(range(count))
        self._fresh = deque[Block]()  # used before, without tokens that anybody may find
        self._idle: dict[int, Block] = {}  # not held by any sequence, with their tokens still there; by key
        self._known: dict[int, Block] = {}  # the last one that was given these tokens; by key
        self._tables: dict[object, _BlockTable] = {}
        self._held = 0

    def warm_up(self) -> None:
        """Account for the request with which an engine warms up: its blocks are known, and first to be overwritten.

        The tokens of its answer are not known here; no prompt has the ones that stand for them.
        """
        tokens = [0] * (self.size + 1)
        self.begin(self, tokens)
        for answer in ([], [-1], [-1, -2]):
            self.grow(self, tokens + answer, len(tokens + answer))
        self.end(self)

    @property
    def held(self) -> int:
        """Blocks that sequences hold, each counted once."""
        return self._held

    def of(self, owner: object) -> tuple[list[Block], Block | None]:
        """The blocks of a sequence, and the last of them where it will write into it and others hold it too."""
        table = self._tables[owner]
        partly_full = len(table.blocks) * self.size > max(table.tokens, table.prompt)
        if partly_full and table.blocks[-1].holders > 1:
            return table.blocks, table.blocks[-1]
        return table.blocks, None

    def find(self, tokens: Sequence[int], beside: Collection[Block] = ()) -> tuple[list[Block], int]:
        """The blocks in which the beginning of `tokens` is, and how many tokens that is.

        `beside`: blocks that other sequences will hold by then.
        """
        found: list[Block] = []
        key = cached = 0
        for start in range(0, len(tokens), self.size):
            part = tuple(tokens[start : start + self.size])
            block = self._at(hash((key, part)), beside)
            if block is None:
                block, length = self._part_of(key, part, beside)
                if block:
                    found.append(block)
                    cached = start + length
                break
            found.append(block)
            key, cached = block.key, start + len(part)
        return found, cached

    def unfit(self, tokens: Sequence[int], beside: Collection[Block] = ()) -> bool:
        """Whether a sequence with these tokens must not begin now: it would find a block that is not ready for it.

        That is a block whose tokens are still being computed; or a half full one that other sequences hold (or, in
        `beside`, will hold), and that it would fill up: OpenVINO copies no block before a prompt is written into it.
        """
        found, cached = self.find(tokens, beside)
        writes = cached < len(tokens) and cached % self.size > 0
        held = writes and (found[-1].holders > 0 or found[-1] in beside)
        return held or not all(block.ready for block in found)

    def begin(self, owner: object, tokens: Sequence[int]) -> int:
        """A sequence begins with `tokens` and takes what is there of them. Returns how many tokens that is: never all.

        The last token of a prompt is always computed, or nothing would come after it.
        """
        found, cached = self.find(tokens)
        cached = min(cached, len(tokens) - 1)
        self._tables[owner] = _BlockTable(found, cached, len(tokens))
        for block in found:
            self._uses += 1
            block.used = self._uses
            if block.holders == 0:
                del self._idle[block.key]
                self._held += 1
            block.holders += 1
        return cached

    def grow(self, owner: object, tokens: Sequence[int], computed: int) -> None:
        """The first `computed` of a sequence's `tokens` are about to be in the cache.

        As in OpenVINO, a prompt's blocks are named by all of its tokens as soon as they are taken. The last block of a
        decoding sequence is named by the tokens that are in it. Only a decoding sequence copies a shared block before
        it writes into the block: see `unfit`.
        """
        table = self._tables[owner]
        before, table.tokens = table.tokens, computed
        needed = -(-computed // self.size)
        if needed > len(table.blocks):
            if table.blocks:
                self._rename(table.blocks[-1], self._key(table, tokens, len(table.blocks) * self.size))
            while len(table.blocks) < needed:
                upto = min((len(table.blocks) + 1) * self.size, len(tokens))
                table.blocks.append(self._take(self._key(table, tokens, upto)))
        elif before >= table.prompt:
            last, key = table.blocks[-1], self._key(table, tokens, len(tokens))
            if last.holders > 1:
                table.blocks[-1] = self._take(key)
                self._let_go(last)
            else:
                self._rename(last, key)
        for block in table.blocks[before // self.size : -1]:
            block.ready = True
        last = table.blocks[-1]
        last.ready = last.ready or computed >= min(needed * self.size, len(tokens))

    def end(self, owner: object) -> None:
        """A sequence is over, or has to leave: its blocks stay known as long as their memory is not wanted."""
        for block in self._tables.pop(owner).blocks:
            self._let_go(block)

    def _at(self, key: int, beside: Collection[Block]) -> Block | None:
        idle = self._idle.get(key)
        if idle and idle not in beside:
            return idle
        return self._known.get(key)

    def _part_of(self, key: int, part: tuple[int, ...], beside: Collection[Block]) -> tuple[Block | None, int]:
        """A block that holds the first few of these tokens and no others."""
        for length in range(1, min(self.size, len(part) + 1)):
            if block := self._at(hash((key, part[:length])), beside):
                return block, length
        return None, 0

    def _key(self, table: _BlockTable, tokens: Sequence[int], length: int) -> int:
        """The key of a block that ends with the first `length` of `tokens`."""
        for start in range(len(table.keys) * self.size, length - self.size + 1, self.size):
            before = table.keys[-1] if table.keys else 0
            table.keys.append(hash((before, tuple(tokens[start : start + self.size]))))
        whole, rest = divmod(length, self.size)
        before = table.keys[whole - 1] if whole else 0
        return hash((before, tuple(tokens[length - rest : length]))) if rest else before

    def _take(self, key: int) -> Block:
        if (number := next(self._untouched, None)) is not None:
            block = Block(number)
        elif self._fresh:
            block = self._fresh.popleft()
        else:
            block = min(self._idle.values(), key=lambda block: block.used)
            del self._idle[block.key]
            self._known.pop(block.key, None)
            self._uses += 1
            block.used = self._uses
        block.key, block.holders, block.ready = key, 1, False
        self._held += 1
        self._known[key] = block
        return block

    def _rename(self, block: Block, key: int) -> None:
        if block.key != key:
            self._known.pop(block.key, None)
            block.key = key
            self._known[key] = block

    def _let_go(self, block: Block) -> None:
        block.holders -= 1
        if block.holders:
            return
        self._held -= 1
        if other := self._idle.pop(block.key, None):  # the same tokens, computed twice
            self._fresh.append(other)
            if self._known.get(other.key) is other:
                self._known[other.key] = block
        self._idle[block.key] = block
