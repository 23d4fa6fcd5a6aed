"""The block manager of a paged KV cache. This file is next to iterative-gpt2's model.py."""

from collections import deque


class OutOfBlocks(Exception):
    """Too few blocks are free, and nothing has changed."""


class Blocks:
    def __init__(self, count, size):
        """`count` blocks with the numbers 0 to count - 1, each with room for `size` tokens."""
        self.size = size
        self.free_blocks = deque(range(count))  # the one that has been free for the longest time first
        self.tables = {}  # sequence -> numbers of its blocks
        self.tokens = {}  # sequence -> its tokens

    def table(self, sequence):
        """The numbers of the sequence's blocks, in order."""
        return self.tables[sequence]

    def allocate(self, sequence, tokens):
        """Blocks for the prompt of a new sequence. Returns how many tokens were found, in whole blocks, never all."""
        missing = -(-len(tokens) // self.size)
        if missing > len(self.free_blocks):
            raise OutOfBlocks
        self.tables[sequence] = [self.free_blocks.popleft() for _ in range(missing)]
        self.tokens[sequence] = list(tokens)
        return 0  # nothing is ever found

    def append(self, sequence, token):
        """Room for one more token, which is about to be written."""
        if len(self.tokens[sequence]) % self.size == 0:
            if not self.free_blocks:
                raise OutOfBlocks
            self.tables[sequence].append(self.free_blocks.popleft())
        self.tokens[sequence].append(token)

    def free(self, sequence):
        """The sequence is over. Its full blocks can be found until they are taken again."""
        del self.tokens[sequence]
        self.free_blocks.extend(reversed(self.tables.pop(sequence)))
