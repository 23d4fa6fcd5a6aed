"""Token ids to text, each ended by the literal `<|endoftext|>`."""

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.guard import Guard
from labserve.triton import input_reader, parameter

END = "<|endoftext|>"  # clients cut the text here


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.tokenizer = Tokenizer.from_file(f"{parameter(args, 'tokenizer_dir')}/tokenizer.json")
        self.known = self.tokenizer.get_vocab_size()
        self.end = self.tokenizer.token_to_id(END)

    def execute(self, requests):
        return self.guard.each(requests, self.tensors)

    def tensors(self, request):
        read = input_reader(request)
        tokens = read("TOKENS_BATCH")
        rows = tokens.reshape(-1, tokens.shape[-1]) if tokens.size else []
        ends = read("END_ID")
        ends = [self.end] * len(rows) if ends is None else np.resize(ends, len(rows)).tolist()
        texts = [self.decode(row, end) + END for row, end in zip(rows, ends, strict=True)]
        # One-dimensional on the wire, whatever the configuration says: clients read element 0.
        return [pb_utils.Tensor("OUTPUT", np.array([t.encode() for t in texts] or [b""], dtype=object))]

    def decode(self, row, end):
        """The text of a row, without padding and without ids that the tokenizer does not know."""
        fill = (row >= self.known) | (row == end) | (row == self.end)
        length = len(row) - int(np.argmin(fill[::-1])) if not fill.all() else 0
        ids = row[:length]
        return self.tokenizer.decode(ids[ids < self.known].tolist(), skip_special_tokens=False)
