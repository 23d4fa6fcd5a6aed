"""Text to token ids, for one request of each sequence that is in the batch.

The client sends the whole text so far, so this model needs to remember nothing; it is the sequence batcher in front of
it (config.pbtxt) that makes every request of a sequence come to the same instance. What Triton says of each request
arrives as control inputs and is written down: it is the independent count that the slot timeline is held against.
"""

import json
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.guard import Guard
from labserve.params import BadInput, text
from labserve.steplog import StepLog
from labserve.triton import instance, parameter, text_of


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        folder = Path(parameter(args, "model_path"))
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.context = json.loads((folder / "config.json").read_text(encoding="utf-8"))["n_positions"]
        batching = json.loads(args["model_config"])["sequence_batching"]
        self.numbered = any(entry["name"] == "CORR_ID" for entry in batching["control_input"])
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        began = time.monotonic()
        responses, rows = [], []
        for row, request in enumerate(requests):
            if not control(request, "READY"):  # an empty slot, filled up by Direct: answered with anything
                responses.append(pb_utils.InferenceResponse(ids_tensor([0])))
                continue
            id = control(request, "CORR_ID") if self.numbered else request.correlation_id()
            rows.append((row, id, control(request, "START"), control(request, "END")))
            responses += self.guard.each([request], lambda one: ids_tensor(self.encode(one)))
        if rows:
            places, ids, starts, ends = zip(*rows, strict=True)
            self.log.write(began, ids, rows=places, start=starts, end=ends, empty=len(requests) - len(rows))
        return responses

    def encode(self, request):
        words = text(text_of(request, "INPUT_TOKENS"), "INPUT_TOKENS", most_bytes=64 * self.context)
        ids = self.tokenizer.encode(words).ids
        if not 0 < len(ids) <= self.context:
            raise BadInput("INPUT_TOKENS", f"{len(ids):,} tokens; the model sees 1 to {self.context:,}")
        return ids

    def finalize(self):
        self.log.close()


def control(request, name):
    """A control input: one number."""
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])


def ids_tensor(ids):
    return [pb_utils.Tensor("ENCODED_INPUT_TOKENS", np.array([ids], dtype=np.int64))]
