"""GPT-2 under iterative scheduling, where a step takes no more newcomers than it should."""

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
        self.waiting = []  # correlation ids of those that have no token yet, in the order in which they came
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))

    def execute(self, requests):
        here = [(request, self.sequence_of(request)) for request in requests]
        batch = self.admitted(here)
        if batch:
            self.one_step(batch)
        for request, sequence in batch:
            if sequence.finished:
                self.forget(request)
            else:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def admitted(self, here):
        """Everybody who runs, and of those who are new the one who came first; the others wait for a later step."""
        for request, sequence in here:
            if sequence.new and request.correlation_id() not in self.waiting:
                self.waiting.append(request.correlation_id())
        present = {request.correlation_id() for request, _ in here}
        chosen = self.waiting[0] if self.waiting and self.waiting[0] in present else None
        if chosen is not None:
            self.waiting.remove(chosen)
        return [(r, s) for r, s in here if not s.new or r.correlation_id() == chosen]

    def one_step(self, batch):
        """One token for each request of the batch, sent to its client; the last one ends the request."""
        started = time.monotonic()
        sequences = [sequence for _, sequence in batch]
        newcomers = sum(sequence.new for sequence in sequences)
        texts = step(self.decoder, sequences)
        for (request, sequence), text in zip(batch, texts, strict=True):
            respond(request, text, last=sequence.finished)
        self.log.write(started, [request.correlation_id() for request, _ in batch], prefill=newcomers)

    def sequence_of(self, request):
        """The text of a request: begun with the request that carries START, found again afterwards."""
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            sequence = self.begin(text_of(request, "text_input"), request.parameters())
            self.sequences[request.correlation_id()] = sequence
        return self.sequences[request.correlation_id()]

    def forget(self, request):
        """The text is finished: its slot of the KV cache is free for another."""
        self.decoder.release(self.sequences.pop(request.correlation_id()))

    def finalize(self):
        self.log.close()
