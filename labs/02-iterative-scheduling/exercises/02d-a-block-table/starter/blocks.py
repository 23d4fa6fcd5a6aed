"""The block manager of a paged KV cache. This file is next to iterative-gpt2's model.py."""


class OutOfBlocks(Exception):
    """Too few blocks are free, and nothing has changed."""


class Blocks:
    def __init__(self, count, size):
        """`count` blocks with the numbers 0 to count - 1, each with room for `size` tokens."""
        self.size = size
        self.taken = 0  # blocks so far
        self.tables = {}  # sequence -> numbers of its blocks

    def table(self, sequence):
        """The numbers of the sequence's blocks, in order."""
        return self.tables[sequence]

    def allocate(self, sequence, tokens):
        """Blocks for the prompt of a new sequence. Returns how many of its tokens were found in the cache: none."""
        self.tables[sequence] = [self.taken]
        self.taken += 1
        return 0

    def append(self, sequence, token):
        """Room for one more token, which is about to be written."""

    def free(self, sequence):
        """The sequence is over."""
        del self.tables[sequence]
