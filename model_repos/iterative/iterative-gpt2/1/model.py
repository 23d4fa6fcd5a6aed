"""GPT-2 under iterative scheduling: every execution adds one token to each sequence in the batch.

Triton calls `execute` with whoever is ready. A request that needs more tokens is *rescheduled*: given back to
Triton, which puts it into a coming batch. Between two calls nothing holds a batch together, so a newcomer
joins at the next token, and a sequence that ends leaves its place at once.
"""

import json
import time

import triton_python_backend_utils as pb_utils

from labserve.decoders import CachedDecoder, RecomputingDecoder, step
from labserve.params import BadInput
from labserve.sequences import new_sequence
from labserve.steplog import StepLog
from labserve.triton import Gauges, device, instance, parameter, refuse, respond, text_of, tokenizer_and_model


class TritonPythonModel:
    def initialize(self, args):
        batching = json.loads(args["model_config"])["sequence_batching"]
        # Triton keeps so many sequences alive at a time: with as many slots, no sequence ever lacks one.
        self.slots = int(batching["oldest"]["max_candidate_sequences"])
        self.idle_limit = int(batching["max_sequence_idle_microseconds"]) / 1e6

        self.tokenizer, model = tokenizer_and_model(
            parameter(args, "model_path"), device(args), int(parameter(args, "threads"))
        )
        self.context = model.config.max_position_embeddings
        cached = parameter(args, "kv_cache").lower() == "true"
        self.decoder = CachedDecoder(model, self.slots, self.context) if cached else RecomputingDecoder(model)
        pb_utils.Logger.log_info(f"{args['model_name']}: {self.decoder.describe()}")

        self.sequences = {}  # correlation id -> what is kept of a sequence between two of its tokens
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.gauges = Gauges(args["model_name"], self.slots)

    def execute(self, requests):
        started = time.monotonic()
        batch = []
        for request in requests:
            try:
                batch.append((request, self.sequence_of(request, started)))
            except BadInput as error:  # no reschedule: Triton ends the sequence
                refuse(request, error)
        if not batch:
            return
        self.sweep(started)

        sequences = [sequence for _, sequence in batch]
        newcomers = sum(sequence.new for sequence in sequences)
        try:
            texts = step(self.decoder, sequences)
        except Exception as error:  # this batch fails, the server goes on
            for request, _ in batch:
                self.forget(request.correlation_id())
                refuse(request, error)
            return

        for (request, sequence), text in zip(batch, texts, strict=True):
            respond(request, text, last=sequence.finished)
            if sequence.finished:
                self.forget(request.correlation_id())
            else:  # the heart of it: not done yet, schedule me again
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

        ids = [request.correlation_id() for request, _ in batch]
        used = len(self.sequences)
        self.log.write(started, ids, prefill=newcomers, slots_used=used, slots=self.slots)
        self.gauges.step(tokens=len(batch), slots_used=used)

    def sequence_of(self, request, now):
        """What is kept for the request; at its first scheduling (flag START) it begins."""
        correlation = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.forget(correlation)  # the id is used anew: what an abandoned sequence left is not for it
            self.sequences[correlation] = new_sequence(
                text_of(request, "text_input"), request.parameters(), self.tokenizer, self.context
            )
        elif correlation not in self.sequences:
            raise BadInput("sequence", f"{correlation} is not known: idle for too long, or never started")
        sequence = self.sequences[correlation]
        sequence.seen = now
        return sequence

    def sweep(self, now):
        """Drop abandoned sequences: nobody tells the model of a cancelled client, only silence does.

        By the time Triton lets another sequence in, the abandoned one is the one that was silent the longest.
        """
        by_age = sorted(self.sequences, key=lambda correlation: self.sequences[correlation].seen)
        surplus = len(self.sequences) - self.slots
        for position, correlation in enumerate(by_age):
            if position >= surplus and now - self.sequences[correlation].seen < self.idle_limit:
                break
            self.forget(correlation)

    def forget(self, correlation):
        sequence = self.sequences.pop(correlation, None)
        if sequence is not None:
            self.decoder.release(sequence)

    def finalize(self):
        self.log.close()
