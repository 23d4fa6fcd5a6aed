"""GPT-2 the simple way: a batch runs to its end, then the next one begins.

Triton's dynamic batcher hands `execute` the requests that were waiting. Until the last of them has its last
token, `execute` does not return, and whoever arrives meanwhile waits.
"""

import json
import time
from functools import partial

import triton_python_backend_utils as pb_utils

from labserve.clock import Clock
from labserve.gauges import Gauges
from labserve.gpt2.decoders import CachedDecoder, RecomputingDecoder, step
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import new_sequence, told
from labserve.guard import Guard
from labserve.seats import Seats
from labserve.steplog import Names, StepLog
from labserve.text.prompts import open_tokenizer
from labserve.text.told import Growing, Told
from labserve.triton import device, instance, parameter, refuse, respond, text_of


class TritonPythonModel:
    def initialize(self, args):
        self.guard = Guard(args)
        self.slots = json.loads(args["model_config"])["max_batch_size"]
        tokenizer = open_tokenizer(parameter(args, "model_path"))
        precision = parameter(args, "precision", "auto")
        model = GPT2(parameter(args, "model_path"), device(args), int(parameter(args, "threads")), precision)
        self.begin = partial(new_sequence, tokenizer=tokenizer, context=model.context, end_id=model.end_id)
        cached = parameter(args, "kv_cache").lower() == "true"
        self.decoder = CachedDecoder(model, self.slots) if cached else RecomputingDecoder(model)
        pb_utils.Logger.log_info(f"{args['model_name']}: {model.describe()}; {self.decoder.describe()}")

        self.names, self.seats = Names(), Seats(self.slots)  # of those in the batch, for the step log
        self.joined = []
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.texts = Told(self.log, lambda: tokenizer)
        self.clock = Clock(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.gauges = Gauges(args["model_name"], slots=self.slots, running=0, steps_total=0, tokens_total=0)

    def execute(self, requests):
        batch = []
        for request in requests:
            try:
                self.guard.check(request)
                sequence = self.begin(text_of(request, "text_input"), request.parameters())
            except Exception as error:
                refuse(request, self.guard.words(error))
            else:
                name = self.names.take(request.request_id())
                self.seats.take(name)
                self.joined.append(name)
                self.gauges.arrived(name, request)
                batch.append((request, sequence, name))

        while batch:  # nobody joins before everybody has left
            batch = self.generate(batch)

    def generate(self, batch):
        """One token for each request of the batch; returns those that need more."""
        sequences = [sequence for _, sequence, _ in batch]
        names = [name for _, _, name in batch]
        line = {"rows": [self.seats.of(name) for name in names], **told(sequences)}
        self.clock.wait(lambda: {"ids": names, **line, "seats": self.seats.names})
        started = time.monotonic()
        newcomers = sum(sequence.new for sequence in sequences)

        unfinished, ended = [], {}
        texts = step(self.decoder, sequences)
        for (request, sequence, name), text in zip(batch, texts, strict=True):
            if isinstance(text, Exception):  # this sequence fails, the others go on
                refuse(request, self.guard.words(text))
            else:
                respond(request, text, last=sequence.finished)
            if sequence.finished or request.is_cancelled():
                self.decoder.release(sequence)
                ended[name] = sequence.why or "cancelled"
            else:
                unfinished.append((request, sequence, name))

        for name in ended:
            self.seats.free(name)
        self.record(started, batch, texts, {**line, "prefill": newcomers, "ended": ended})
        self.clock.done(left=len(unfinished))
        return unfinished

    def record(self, started, batch, texts, line):
        """The step's line in the log (docs/step-log.md)."""
        made = [0 if isinstance(text, Exception) else 1 for text in texts]
        grown = [Growing(name, s.ids, s.prompt, n) for (_, s, name), n in zip(batch, made, strict=True)]
        pieces = ["" if isinstance(text, Exception) else text for text in texts]
        names = [name for _, _, name in batch]
        self.log.write(
            started, names, **line, made=made, **self.texts.fields(grown, pieces),
            joined=self.joined, slots=self.slots, slots_used=self.seats.used, seats=self.seats.names,
        )  # fmt: skip
        self.gauges.step(names, line["phase"], line["tokens"], made)
        for name in line["ended"]:
            self.names.free(name)
            self.texts.forget(name)
            self.gauges.gone(name)
        self.joined = []
        self.gauges.update(running=self.seats.used)

    def finalize(self):
        self.gauges.close()
        self.log.close()
