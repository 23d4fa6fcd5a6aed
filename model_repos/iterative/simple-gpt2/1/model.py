"""GPT-2 the simple way: a batch runs to its end, then the next one begins.

Triton's dynamic batcher hands `execute` the requests that were waiting. Until the last of them has its last
token, `execute` does not return, and whoever arrives meanwhile waits.
"""

import json
import time
from functools import partial

import triton_python_backend_utils as pb_utils

from labserve.gauges import Gauges
from labserve.gpt2.decoders import CachedDecoder, RecomputingDecoder, step
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import new_sequence
from labserve.guard import Guard
from labserve.steplog import StepLog
from labserve.text.prompts import open_tokenizer
from labserve.triton import device, instance, parameter, refuse, respond, text_of


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.slots = json.loads(args["model_config"])["max_batch_size"]
        tokenizer = open_tokenizer(parameter(args, "model_path"))
        model = GPT2(parameter(args, "model_path"), device(args), int(parameter(args, "threads")))
        self.begin = partial(new_sequence, tokenizer=tokenizer, context=model.context, end_id=model.end_id)
        cached = parameter(args, "kv_cache").lower() == "true"
        self.decoder = CachedDecoder(model, self.slots) if cached else RecomputingDecoder(model)
        pb_utils.Logger.log_info(f"{args['model_name']}: {self.decoder.describe()}")

        self.begun = 0  # sequences so far: the step log's names for them
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.gauges = Gauges(args["model_name"], slots=self.slots, slots_used=0, steps_total=0, tokens_total=0)

    def execute(self, requests):
        batch = []
        for request in requests:
            try:
                self.guard.check(request)
                sequence = self.begin(text_of(request, "text_input"), request.parameters())
            except Exception as error:
                refuse(request, self.guard.words(error))
            else:
                self.begun += 1
                batch.append((request, sequence, self.begun))

        while batch:  # nobody joins before everybody has left
            batch = self.generate(batch)

    def generate(self, batch):
        """One token for each request of the batch; returns those that need more."""
        started = time.monotonic()
        sequences = [sequence for _, sequence, _ in batch]
        newcomers = sum(sequence.new for sequence in sequences)

        unfinished = []
        for member, text in zip(batch, step(self.decoder, sequences), strict=True):
            request, sequence, _ = member
            if isinstance(text, Exception):  # this sequence fails, the others go on
                refuse(request, self.guard.words(text))
            else:
                respond(request, text, last=sequence.finished)
            if sequence.finished or request.is_cancelled():
                self.decoder.release(sequence)
            else:
                unfinished.append(member)

        numbers = [number for _, _, number in batch]
        used = len(unfinished)
        self.log.write(started, numbers, prefill=newcomers, slots_used=used, slots=self.slots)
        self.gauges.update(slots_used=used, steps_total=1, tokens_total=len(batch))
        return unfinished

    def finalize(self):
        self.log.close()
