"""GPT-2 under iterative scheduling. Any number of newcomers may join in one step: limit them to one."""

import triton_python_backend_utils as pb_utils

from labserve.gpt2.decoders import step
from labserve.gpt2.loading import load_gpt2
from labserve.triton import respond, text_of


class TritonPythonModel:
    def initialize(self, args):
        self.begin, self.decoder = load_gpt2(args)
        self.sequences = {}  # correlation id -> the text so far

    def execute(self, requests):
        here = [(request, self.sequence_of(request)) for request in requests]
        batch = self.admitted(here)
        if batch:
            self.one_step(batch)
        for request, sequence in here:
            if sequence.finished:
                self.forget(request)
            else:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

    def admitted(self, here):
        """All running requests, and of the new ones (`sequence.new`) ... all of them."""
        return here

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

    def forget(self, request):
        """The text is finished: its slot of the KV cache is free for another."""
        self.decoder.release(self.sequences.pop(request.correlation_id()))
