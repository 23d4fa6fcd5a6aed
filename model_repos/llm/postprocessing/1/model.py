"""Token ids to text: one string per sequence, or what one more token adds to it."""

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.guard import Guard
from labserve.params import Refusal, read_single
from labserve.triton import input_reader, parameter

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.tokenizer = Tokenizer.from_file(f"{parameter(args, 'tokenizer_dir')}/tokenizer.json")
        self.known = self.tokenizer.get_vocab_size()

    def execute(self, requests):
        return self.guard.each(requests, self.tensors)

    def tensors(self, request):
        read = input_reader(request)
        tokens, context = read("TOKENS_BATCH"), read("CONTEXT_IDS")
        last = bool(read_single(read, "LAST", tokens.size == 0))
        if not (tokens.size or last):
            raise Refusal("another client's `stop` ended the answer")
        if context is not None and context.size and tokens.size:
            texts = [self.piece(context.reshape(-1), tokens.reshape(-1), last)]
        else:
            width = tokens.shape[-1]
            texts = [self.decode(row) for row in tokens.reshape(-1, width)] if width else [""]
        # One-dimensional on the wire, whatever the configuration says: clients read element 0.
        return [pb_utils.Tensor("OUTPUT", np.array([t.encode() for t in texts] or [b""], dtype=object))]

    def piece(self, context, tokens, last):
        """The text that `tokens` add to `context`, without an incomplete character."""
        before = self.decode(context).rstrip(INCOMPLETE)
        after = self.decode([*context, *tokens])
        return (after if last else after.rstrip(INCOMPLETE))[len(before) :]

    def decode(self, ids):
        """The ids with a text: special ones, and ids that the tokenizer does not know, have none."""
        return self.tokenizer.decode([i for i in ids if 0 <= i < self.known], skip_special_tokens=True)
