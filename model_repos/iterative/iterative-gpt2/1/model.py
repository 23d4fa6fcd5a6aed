"""GPT-2 under iterative scheduling: every execution adds one token to each sequence in the batch.

Triton calls `execute` with whoever is ready. A request that needs more tokens is *rescheduled*: given back to
Triton, which puts it into a coming batch. Between two calls nothing holds a batch together, so a newcomer
joins at the next token, and a sequence that ends leaves its place at once.
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
from labserve.params import BadInput
from labserve.seats import Seats
from labserve.steplog import StepLog, queued
from labserve.text.prompts import open_tokenizer
from labserve.text.told import Growing, Told
from labserve.triton import device, instance, parameter, refuse, respond, text_of

PATIENCE = 1.0  # seconds of silence after which a sequence's slot, or its id, may go to another
LEAST_S = 0.001  # a shorter wait would gather nobody: to be given back takes as long
START, END = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END


class TritonPythonModel:
    def initialize(self, args):
        batching = json.loads(args["model_config"])["sequence_batching"]
        self.guard = Guard(args)
        self.slots = int(parameter(args, "slots"))
        self.gather = int(parameter(args, "gather_microseconds", "0")) / 1e6
        self.idle_limit = int(batching["max_sequence_idle_microseconds"]) / 1e6

        tokenizer = open_tokenizer(parameter(args, "model_path"))
        precision = parameter(args, "precision", "auto")
        model = GPT2(parameter(args, "model_path"), device(args), int(parameter(args, "threads")), precision)
        self.begin = partial(new_sequence, tokenizer=tokenizer, context=model.context, end_id=model.end_id)
        cached = parameter(args, "kv_cache").lower() == "true"
        self.decoder = CachedDecoder(model, self.slots) if cached else RecomputingDecoder(model)
        pb_utils.Logger.log_info(f"{args['model_name']}: {model.describe()}; {self.decoder.describe()}")

        self.sequences = {}  # correlation id -> what is kept of a sequence between two of its tokens
        self.running = {}  # those of them that have a slot
        self.unfinished = set()  # those that had a token in the last step and want another
        self.resting = {}  # correlation id -> when a sequence of it ended, or was refused
        self.asked = 0.0  # when it was last looked whose client has gone
        self.gave_back = self.gathered = False
        self.seats = Seats(self.slots)  # the slots as they are shown
        self.joined, self.evicted, self.ended = [], [], {}  # since the last step, for its line in the log
        self.log = StepLog(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.texts = Told(self.log, lambda: tokenizer)
        self.clock = Clock(parameter(args, "run_dir"), args["model_name"], instance(args))
        self.gauges = Gauges(args["model_name"], slots=self.slots, running=0, waiting=0, steps_total=0, tokens_total=0)

    def execute(self, requests):
        now = self.clock.now()
        self.sweep(now)
        here = []
        for request in requests:
            try:
                here.append((request, self.sequence_of(request, now)))
            except Exception as error:
                self.turn_away(request, self.guard.words(error), now)

        batch, waiting = [], []
        for request, sequence in here:
            correlation = request.correlation_id()
            if self.sequences.get(correlation) is not sequence:  # its id was used again in this very batch
                self.turn_away(request, str(used_twice(correlation)), now)
            elif self.admit(correlation, sequence, now):
                batch.append((request, sequence))
            else:  # all slots are taken: back to Triton's queue, without an answer
                waiting.append(correlation)
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        if not batch:
            self.show()
            return
        ids = [request.correlation_id() for request, _ in batch]
        if self.out_of_step(ids) or self.too_early(ids):
            for request, _ in batch:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            return

        sequences = [sequence for _, sequence in batch]
        line = {"rows": [self.seats.of(id) for id in ids], **told(sequences), **queued(waiting, "no slot")}
        self.clock.wait(lambda: {"ids": [str(id) for id in ids], **line, "seats": self.seats.names})
        started = time.monotonic()
        newcomers = sum(sequence.new for sequence in sequences)
        texts = step(self.decoder, sequences)
        line["engine_us"] = round((time.monotonic() - started) * 1e6)
        for (request, sequence), text in zip(batch, texts, strict=True):
            if isinstance(text, Exception):  # this sequence fails, the others go on
                self.turn_away(request, self.guard.words(text), self.clock.now())
                continue
            respond(request, text, last=sequence.finished)
            if sequence.finished:
                self.rest(request.correlation_id(), self.clock.now(), sequence.why)
            else:  # the heart of it: not done yet, schedule me again
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)

        self.unfinished = {id for id in ids if id in self.running}
        self.record(started, batch, texts, {**line, "prefill": newcomers})
        self.clock.done(left=len(self.unfinished) + len(waiting))

    def record(self, started, batch, texts, line):
        """The step's line in the log (docs/step-log.md)."""
        made = [0 if isinstance(text, Exception) else 1 for text in texts]
        names = [str(request.correlation_id()) for request, _ in batch]
        grown = [Growing(name, s.ids, s.prompt, n) for name, (_, s), n in zip(names, batch, made, strict=True)]
        pieces = ["" if isinstance(text, Exception) else text for text in texts]
        self.log.write(
            started, names, **line, made=made, **self.texts.fields(grown, pieces),
            joined=self.joined, evicted=self.evicted, ended=self.ended,
            slots=self.slots, slots_used=len(self.running), seats=self.seats.names,
        )  # fmt: skip
        self.gauges.step(names, line["phase"], line["tokens"], made)
        for name in self.ended:
            self.texts.forget(name)
            self.gauges.gone(name)
        self.joined, self.evicted, self.ended = [], [], {}
        self.show()

    def show(self):
        """How many have a slot, and how many want one (a client that left while it waited: until the idle limit)."""
        self.gauges.update(running=len(self.running), waiting=len(self.sequences) - len(self.running))

    def sequence_of(self, request, now):
        """What is kept for the request; at its first scheduling (flag START) it begins."""
        correlation, flags = request.correlation_id(), request.flags()
        kept = self.sequences.get(correlation)
        if correlation in self.resting:
            raise BadInput("sequence_id", f"{correlation} was in use just now; it can be used again in {PATIENCE:g} s")
        if flags & END:  # Triton has forgotten the id by now, and cannot schedule it again
            raise BadInput("sequence_end", "a sequence ends here with its last token; leave this flag out")
        if kept is not None and (kept.seen == now or (flags & START and now - kept.seen < PATIENCE)):
            # Triton keeps one entry for an id and drops it when either of the two ends: neither could go on alone.
            raise used_twice(correlation)
        if flags & START:
            self.forget(correlation, "cancelled")  # its client has gone: what it left is not for this one
            self.guard.check(request)
            kept = self.begin(text_of(request, "text_input"), request.parameters())
            self.gauges.arrived(str(correlation), request)
        elif kept is None:
            raise BadInput("sequence_id", f"{correlation} is not known: used twice, or idle for too long")
        kept.seen, kept.sender = now, request.get_response_sender()
        self.sequences.pop(correlation, None)
        self.sequences[correlation] = kept  # at the end: the dict stays in the order of silence
        return kept

    def admit(self, correlation, sequence, now):
        """Whether the sequence has a slot; it gets one that is free, or that of a sequence that fell silent.

        Should the silent one come back after all, it waits for a slot, and its keys and values are computed again.
        """
        if correlation in self.running:
            return True
        if len(self.running) == self.slots:
            silent = min(self.running, key=lambda other: self.running[other].seen)
            if now - self.running[silent].seen < PATIENCE:
                return False
            self.decoder.release(self.running.pop(silent))
            self.seats.free(silent)
            self.evicted.append(str(silent))
        self.running[correlation] = sequence
        self.seats.take(correlation)
        self.joined.append(str(correlation))
        return True

    def out_of_step(self, ids):
        """Whether to wait for sequences that had a token in the last step and are only on their way back.

        Triton forms the next batch while a step is computed, without those who are in it: a newcomer and they would
        take turns, each in a batch of its own, for as long as chance has it. Given back once, the newcomer meets
        them in the queue. Only once in a row: a sequence whose client has gone does not come back.
        """
        self.gave_back = not self.gave_back and not self.unfinished.issubset(ids)
        return self.gave_back

    def too_early(self, ids):
        """Whether newcomers of an idle model are given back once, after a moment in which others may have come.

        Else the first of those who come together would have a step of its own, and all the others wait for it.
        """
        self.gathered = not (self.gathered or self.unfinished or len(ids) == self.slots or self.gather < LEAST_S)
        if self.gathered:
            time.sleep(self.gather)
        return self.gathered

    def sweep(self, now):
        """Forget sequences whose clients have gone, and those that Triton itself gives up by now.

        Triton does not say that a client has gone: its sequence is not scheduled again, and that is all. But where
        the last answer went, it can be asked.
        """
        if now - self.asked >= PATIENCE:
            self.asked = now
            silent = [id for id, sequence in self.running.items() if now - sequence.seen >= PATIENCE]
            for correlation in silent:
                if self.sequences[correlation].sender.is_cancelled():
                    self.forget(correlation, "cancelled")
        while self.sequences:  # in the order in which they were last seen
            correlation, sequence = next(iter(self.sequences.items()))
            if now - sequence.seen < self.idle_limit:
                break
            self.forget(correlation, "idle")
        while self.resting and now - next(iter(self.resting.values())) >= PATIENCE:
            self.resting.pop(next(iter(self.resting)))

    def turn_away(self, request, words, now):
        """Answer with an error and do not reschedule."""
        refuse(request, words)
        self.rest(request.correlation_id(), now)

    def rest(self, correlation, now, why="failed"):
        """A sequence has ended, with which Triton drops what it has of that id.

        Of other requests with the id that are in its queue by now none could be rescheduled, and their clients would
        hear nothing. So all that come are turned away, until the id was quiet for a while.
        """
        self.forget(correlation, why)
        self.resting.pop(correlation, None)
        self.resting[correlation] = now  # at the end, as above

    def forget(self, correlation, why):
        """The only way out for a sequence: its slot is free again."""
        self.running.pop(correlation, None)
        self.seats.free(correlation)
        sequence = self.sequences.pop(correlation, None)
        if sequence is not None:
            self.decoder.release(sequence)
            self.ended[str(correlation)] = why

    def finalize(self):
        self.gauges.close()
        self.log.close()


def used_twice(correlation):
    return BadInput("sequence_id", f"{correlation} was started while a sequence of that id was running; both end here")
