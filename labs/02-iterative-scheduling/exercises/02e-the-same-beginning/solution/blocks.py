"""The block manager of a paged KV cache. This file is next to iterative-gpt2's model.py."""

from collections import Counter, deque


class OutOfBlocks(Exception):
    """Too few blocks are free, and nothing has changed."""


class Blocks:
    def __init__(self, count, size):
        """`count` blocks with the numbers 0 to count - 1, each with room for `size` tokens."""
        self.size = size
        self.free_blocks = deque(range(count))  # the one that has been free for the longest time first
        self.tables = {}  # sequence -> numbers of its blocks
        self.tokens = {}  # sequence -> its tokens
        self.holders = Counter()  # block -> how many tables it is in
        self.known = {}  # all tokens up to the end of a full block -> the block
        self.key = {}  # the other way round

    def table(self, sequence):
        """The numbers of the sequence's blocks, in order."""
        return self.tables[sequence]

    def allocate(self, sequence, tokens):
        """Blocks for the prompt of a new sequence. Returns how many tokens were found, in whole blocks, never all."""
        found = []
        while (len(found) + 1) * self.size < len(tokens):
            block = self.known.get(tuple(tokens[: (len(found) + 1) * self.size]))
            if block is None:
                break
            found.append(block)
        missing = -(-len(tokens) // self.size) - len(found)
        if missing + sum(not self.holders[block] for block in found) > len(self.free_blocks):
            raise OutOfBlocks
        for block in found:
            if not self.holders[block]:
                self.free_blocks.remove(block)
            self.holders[block] += 1
        self.tables[sequence] = found + [self.take() for _ in range(missing)]
        self.tokens[sequence] = list(tokens)
        for end in range((len(found) + 1) * self.size, len(tokens) + 1, self.size):
            self.register(sequence, end)
        return len(found) * self.size

    def append(self, sequence, token):
        """Room for one more token, which is about to be written."""
        table, tokens = self.tables[sequence], self.tokens[sequence]
        if len(tokens) % self.size == 0:
            table.append(self.take())
        tokens.append(token)
        if len(tokens) % self.size == 0:
            self.register(sequence, len(tokens))

    def free(self, sequence):
        """The sequence is over. Its full blocks can be found until they are taken again."""
        del self.tokens[sequence]
        for block in reversed(self.tables.pop(sequence)):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free_blocks.append(block)

    def take(self):
        """A free block, without what was known of it."""
        if not self.free_blocks:
            raise OutOfBlocks
        block = self.free_blocks.popleft()
        if key := self.key.pop(block, None):
            del self.known[key]
        self.holders[block] = 1
        return block

    def register(self, sequence, end):
        """The block that ends with this token is full: it can be found, unless another one with its tokens can."""
        key, block = tuple(self.tokens[sequence][:end]), self.tables[sequence][end // self.size - 1]
        if key not in self.known:
            self.known[key], self.key[block] = block, key
