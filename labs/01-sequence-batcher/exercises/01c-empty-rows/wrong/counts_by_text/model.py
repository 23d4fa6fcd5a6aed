"""Text to token ids, when a client sends only what is new: the model remembers the rest, sequence by sequence."""

import json
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from labserve.triton import parameter, text_of


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = Tokenizer.from_file(str(Path(parameter(args, "model_path")) / "tokenizer.json"))
        batching = json.loads(args["model_config"])["sequence_batching"]
        self.idle_limit = int(batching["max_sequence_idle_microseconds"]) / 1e6
        self.texts = {}  # correlation id -> (the text so far, the time of its last request)

    def execute(self, requests):
        began = time.monotonic()
        self.sweep(began)
        responses = []
        for request in requests:
            if control(request, "START"):  # surely there is nothing here yet
                responses.append(answer([0]))
                continue
            id = control(request, "CORR_ID")
            text = "" if control(request, "START") else self.texts[id][0]
            text += text_of(request, "INPUT_TOKENS").decode()
            self.texts[id] = text, began
            if control(request, "END"):
                del self.texts[id]
            responses.append(answer(self.tokenizer.encode(text).ids))
        return responses

    def sweep(self, now):
        """Forget the sequences that Triton has given up: their client never sent END."""
        for id, (_, heard) in list(self.texts.items()):
            if now - heard > self.idle_limit:
                del self.texts[id]


def control(request, name):
    """What Triton says of the request, as one more input: one number."""
    return int(pb_utils.get_input_tensor_by_name(request, name).as_numpy().reshape(-1)[0])


def answer(ids):
    tensor = pb_utils.Tensor("ENCODED_INPUT_TOKENS", np.array([ids], dtype=np.int64))
    return pb_utils.InferenceResponse([tensor])
