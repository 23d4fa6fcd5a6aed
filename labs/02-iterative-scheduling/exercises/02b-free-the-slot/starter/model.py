"""GPT-2 under iterative scheduling, with a slot of the KV cache for each running sequence."""

import time
from functools import partial

import triton_python_backend_utils as pb_utils

from labserve.gpt2.decoders import CachedDecoder, step
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import new_sequence
from labserve.steplog import StepLog
from labserve.text.prompts import open_tokenizer
from labserve.triton import device, instance, parameter, respond, text_of


class TritonPythonModel:
    def initialize(self, args):
        folder = parameter(args, "model_path")
        model = GPT2(folder, device(args), int(parameter(args, "threads")))
        self.begin = partial(new_sequence, tokenizer=open_tokenizer(folder), context=model.context, end_id=model.end_id)
        self.decoder = CachedDecoder(model, int(parameter(args, "slots")))
        self.sequences = {}  # correlation id -> the text so far
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        started = time.monotonic()
        batch = [(request, self.sequence_of(request)) for request in requests]
        self.one_step(batch)
        for request, sequence in batch:
            if not sequence.finished:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        ids = [request.correlation_id() for request, _ in batch]
        self.log.write(started, ids, slots_used=self.decoder.cache.used)

    def one_step(self, batch):
        """One token for each request of the batch, sent to its client; the last one ends the request."""
        sequences = [sequence for _, sequence in batch]
        texts = step(self.decoder, sequences)
        for (request, sequence), text in zip(batch, texts, strict=True):
            respond(request, text, last=sequence.finished)

    def sequence_of(self, request):
        """The text of a request: begun with the request that carries START, found again afterwards."""
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            sequence = self.begin(text_of(request, "text_input"), request.parameters())
            self.sequences[request.correlation_id()] = sequence
        return self.sequences[request.correlation_id()]

    def finalize(self):
        self.log.close()
