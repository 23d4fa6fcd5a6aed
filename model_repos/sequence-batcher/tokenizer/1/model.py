"""Text to token ids, for one request of each sequence that is in the batch.

The client sends the whole text so far, so this model needs to remember nothing. The sequence batcher in front of it
(config.pbtxt) makes every request of a sequence come to the same instance. What Triton says of each request arrives as
control inputs: READY (the slot is not empty), START, END and CORR_ID.
"""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.guard import Guard
from labserve.observe.executions import SequenceExecutions
from labserve.params import BadInput, text
from labserve.triton import control, parameter, text_of


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        folder = Path(parameter(args, "model_path"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.context = json.loads((folder / "config.json").read_text(encoding="utf-8"))["n_positions"]
        self.executions = SequenceExecutions(args)

    def execute(self, requests):
        with self.executions.of(requests):
            return self.guard.each(requests, self.answer)

    def answer(self, request):
        # Direct fills empty slots with empty requests. Each needs an answer, of any content.
        ids = self.encode(request) if control(request, "READY") else [0]
        return [pb_utils.Tensor("ENCODED_INPUT_TOKENS", np.array([ids], dtype=np.int64))]

    def encode(self, request):
        words = text(text_of(request, "INPUT_TOKENS"), "INPUT_TOKENS", most_bytes=64 * self.context)
        ids = self.tokenizer.encode(words).ids
        if not 0 < len(ids) <= self.context:
            raise BadInput("INPUT_TOKENS", f"{len(ids):,} tokens; the model sees 1 to {self.context:,}")
        return ids

    def finalize(self):
        self.executions.close()
