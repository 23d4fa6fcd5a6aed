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

from labserve.clock import Clock
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
        config = json.loads(args["model_config"])
        batching = config["sequence_batching"]
        self.numbered = any(entry["name"] == "CORR_ID" for entry in batching["control_input"])
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.clock = Clock(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.seats = [""] * config["max_batch_size"]  # who has each slot, as far as this model is told
        self.direct = "direct" in batching  # a slot is a row; with Oldest the row is another each time

    def execute(self, requests):
        self.clock.wait(lambda: {"ids": [str(self.id_of(one)) for one in requests if control(one, "READY")]})
        began = time.monotonic()
        responses, rows = [], []
        for row, request in enumerate(requests):
            if not control(request, "READY"):  # an empty slot, filled up by Direct: answered with anything
                responses.append(pb_utils.InferenceResponse(ids_tensor([0])))
                continue
            (answer,) = self.guard.each([request], lambda one: ids_tensor(self.encode(one)))
            responses.append(answer)
            rows.append((row, str(self.id_of(request)), control(request, "START"), control(request, "END")))
        if rows:
            self.record(began, rows, len(requests))
        self.clock.done()
        return responses

    def id_of(self, request):
        return control(request, "CORR_ID") if self.numbered else request.correlation_id()

    def record(self, began, rows, size):
        """The execution's line in the log (docs/step-log.md)."""
        places, ids, starts, ends = (list(column) for column in zip(*rows, strict=True))
        seats = self.seats if self.direct else [""] * len(self.seats)
        for row, id, _, _ in rows:
            seats[row] = id
        self.seats = [id if id not in ids or not ends[ids.index(id)] else "" for id in seats]
        self.log.write(
            began, ids, rows=places, start=starts, end=ends, empty=size - len(rows),
            joined=[id for id, start in zip(ids, starts, strict=True) if start],
            ended={id: "client" for id, end in zip(ids, ends, strict=True) if end},
            slots=len(seats), slots_used=sum(map(bool, self.seats)), seats=self.seats,
        )  # fmt: skip

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
