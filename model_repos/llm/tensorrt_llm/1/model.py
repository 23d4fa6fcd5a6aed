"""The engine's server: requests come and go in `execute`, and a thread of its own computes step after step.

`execute` only puts requests into an inbox and returns; Triton may call it again at once, so that a hundred requests
can be in flight in this one instance. The thread empties the inbox between two steps, lets the scheduler choose who
is in the batch (labserve/inflight/scheduler.py: there V1 and in-flight batching part), and answers whoever is done.
A `scheduler.py` beside this file may decide otherwise (labserve/inflight/own.py).
"""

import json
import queue
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

from labserve import effective
from labserve.clock import Clock
from labserve.gauges import Gauges
from labserve.guard import Guard
from labserve.inflight import request as llm_request
from labserve.inflight.account import Account
from labserve.inflight.job import End, Job
from labserve.inflight.own import scheduler_beside, with_line
from labserve.inflight.setup import set_up
from labserve.params import Refusal
from labserve.steplog import Names, StepLog, queued
from labserve.tensors import one
from labserve.text.told import Growing, Told, tokenizer_in
from labserve.triton import FINAL, device, instance, parameter, reader, refuse

GATHER_S = 0.005  # so long an idle engine waits for the rest of a static batch
ASK_S = 0.5  # so often the clients of requests are asked after
FEW = 16  # of those that wait are asked at a time
CONTEXT = 8  # ids before a new one that a detokenizer may need
CLOSE = object()
HERE = Path(__file__).parent


class TritonPythonModel:
    def initialize(self, args):
        def word(name):
            return parameter(args, name, "")

        made = set_up(word, device(args), scheduler_beside(HERE))
        self.shape, self.scheduler = made.shape, made.scheduler
        policy, limit, kv = self.scheduler.policy.value, self.scheduler.max_running, made.kv

        self.account = Account(made.features)
        self.decoupled = json.loads(args["model_config"])["model_transaction_policy"]["decoupled"]
        self.guard = Guard(args)
        self.inbox = queue.SimpleQueue()
        self.open = {}  # requests without a final response yet, by their number
        self.count = self.asked = self.next = 0  # requests; when they were asked whether they are still wanted
        self.names, self.ended = Names(), {}  # of live requests; who ended since the last step, and why
        self.log = StepLog(word("run_dir"), args["model_name"], instance(args))
        self.texts = Told(self.log, lambda: tokenizer_in(word("gpt_model_path")))
        self.clock = Clock(word("run_dir"), args["model_name"], instance(args))
        self.gauges = Gauges(
            args["model_name"], slots=limit, running=0, waiting=0, kv_blocks=kv.blocks, kv_blocks_used=0,
            steps_total=0, tokens_total=0, admissions_total=0, preemptions_total=0,
        )  # fmt: skip
        effective.note(word("run_dir"), [
            ("batch_scheduler_policy", made.asked_policy, policy, made.reason), *made.features.in_force(word),
            ("scheduling", word("scheduling"), word("scheduling"), ""),
        ])  # fmt: skip
        pb_utils.Logger.log_info(
            f"{word('gpt_model_type')}, {policy}{f' ({made.reason})' if made.reason else ''}: "
            f"at most {limit} sequences, {kv.blocks:,} KV blocks of {kv.block_size} tokens "
            f"({made.engine.cache_bytes / 2**20:,.0f} MiB)"
        )
        self.thread = threading.Thread(target=self.serve, name="scheduler", daemon=True)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            self.inbox.put(request)
        return [None] * len(requests) if not self.decoupled else None

    # -- the scheduler's thread -------------------------------------------------------------------------------------

    def serve(self):
        """Run; and should the scheduler itself fail, tell everybody who waits, and whoever comes later."""
        try:
            self.run()
        except Exception as error:
            words = self.guard.words(with_line(error, HERE))
            while self.open:
                with suppress(Exception):
                    refuse(self.open.popitem()[1], words)
            while (request := self.inbox.get()) is not CLOSE:
                refuse(request, words)
            self.inbox.put(CLOSE)

    def run(self):
        """One turn after the other; asleep while there is nothing to do."""
        while self.receive(wait=self.scheduler.idle):
            self.drop_cancelled()
            waited_for = len(self.scheduler.running) + len(self.scheduler.waiting)
            if not waited_for:
                self.nothing_to_do()
            elif not self.clock.ready(self.next_step):
                continue  # it stands still; who arrives meanwhile is received
            if self.scheduler.idle:
                continue
            started = time.monotonic()
            try:
                turn = self.scheduler.turn()
            except Exception as error:  # everybody is told, the server goes on
                words = self.guard.words(with_line(error, HERE))
                for job in self.scheduler.abandon(Refusal(f"the step failed: {words}")):
                    self.answer(job)
                self.clock.done()
                continue
            if self.decoupled:
                for job, tokens in turn.produced:
                    self.stream(job, tokens)
            for job in turn.ended:
                self.answer(job)
            if turn.batch:
                self.record(started, turn)
            if waited_for:
                self.clock.done(left=len(self.scheduler.running) + len(self.scheduler.waiting))

    def receive(self, wait):
        """Take what has arrived; False when the model is to be unloaded."""
        while True:
            try:
                item = self.inbox.get(block=wait)
            except queue.Empty:
                return True
            if item is CLOSE:
                return False
            self.take(item)
            if wait and self.scheduler.static:
                self.gather()
            wait = False

    def gather(self):
        """A static batch lets nobody join later: give those who come at the same moment their chance."""
        deadline = time.monotonic() + GATHER_S
        while len(self.scheduler.waiting) < self.scheduler.max_running:
            try:
                item = self.inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if item is CLOSE:
                self.inbox.put(CLOSE)
                return
            self.take(item)

    def take(self, request):
        """Into the scheduler's queue, or back with an error that names what is wrong."""
        self.count += 1
        self.open[self.count] = request
        read = reader(request)
        try:
            if one(read, "stop", False):
                self.open.pop(self.count)
                self.stop(request)
                return
            self.guard.check(request)
            asked = llm_request.parse(read, self.shape)
            id = request.request_id() or f"#{self.count}"
            job = Job(id, asked.prompt, asked.limit, asked.sampling, asked.stop_words, asked.streaming, request)
            job.tenant, job.priority = llm_request.standing(request.parameters())
            job.number = self.count
            self.scheduler.submit(job)
            job.name = self.names.take(id)
            self.gauges.arrived(job.name, request)
        except Exception as error:
            self.open.pop(self.count, None)
            refuse(request, self.guard.words(error))

    def stop(self, request):
        """Cancel the live request of the same id; both get a final response."""
        for job in [*self.scheduler.running, *self.scheduler.waiting]:
            if job.id == request.request_id():
                self.scheduler.cancel(job)
                self.answer(job)
        send(request, [], [], last=True, flags=FINAL)

    def drop_cancelled(self):
        """Clients that have gone leave the batch before its next step, and never join it.

        To ask costs a message to the server and back, while the engine stands idle. So twice a second everybody in the
        batch is asked and a few of those that wait; and whoever is next to join, before it does.
        """
        waiting, alive = self.scheduler.line(), 0
        for job in waiting:
            if alive == self.scheduler.places:
                break
            alive += not self.drop_if_cancelled(job)
        if time.monotonic() - self.asked < ASK_S:
            return
        self.asked = time.monotonic()
        for job in list(self.scheduler.running):
            self.drop_if_cancelled(job)
        for job in waiting[self.next : self.next + FEW]:
            self.drop_if_cancelled(job)
        self.next = self.next + FEW if self.next + FEW < len(waiting) else 0

    def drop_if_cancelled(self, job):
        if job.end is None and job.request.is_cancelled():
            self.scheduler.cancel(job)
            job.error = Refusal("the request was cancelled by its client")
            self.answer(job)
        return job.end is not None

    def stream(self, job, tokens):
        """One response for each new token; the last one carries the final flag itself."""
        if not job.streaming:
            return
        ids = (job.prompt + job.output)[-CONTEXT - len(tokens) :]
        for index, token in enumerate(tokens, len(ids) - len(tokens)):
            last = job.end is not None and index == len(ids) - 1
            send(job.request, [token], ids[max(0, index - CONTEXT) : index], last, FINAL if last else 0)

    def answer(self, job):
        """The final response of a job that is over."""
        if self.open.pop(job.number, None) is None:
            return  # it has been told already
        self.ended[job.name] = job.why
        self.names.free(job.name)
        if job.error:
            refuse(job.request, self.guard.words(job.error))
        elif not (self.decoupled and job.streaming):
            send(job.request, job.prompt + job.output, [], last=True, flags=FINAL)
        elif job.end is End.CANCELLED:
            send(job.request, [], [], last=True, flags=FINAL)

    def record(self, started, turn):
        """The step's line in the log (docs/step-log.md)."""
        made = {job.number: len(tokens) for job, tokens in turn.produced}
        counts = [made.get(job.number, 0) for job in turn.batch]
        grown = [
            Growing(job.name, job.prompt + job.output, len(job.prompt), count)
            for job, count in zip(turn.batch, counts, strict=True)
        ] if self.log.texts else []  # fmt: skip
        self.log.write(
            started, [job.name for job in turn.batch], rows=turn.seats, phase=turn.phase, tokens=turn.computed,
            made=counts, engine_us=round(turn.engine_s * 1e6), **self.account.line(turn), **self.texts.fields(grown),
            blocks=turn.claims,
            prefill=turn.prefill, decode=len(turn.batch) - turn.prefill,
            **queued([job.name for job in turn.waiting], turn.why),
            joined=[job.name for job in turn.admitted], admitted=len(turn.admitted),
            evicted=[job.name for job in turn.preempted], preempted=len(turn.preempted), ended=self.ended,
            slots=self.scheduler.max_running, slots_used=self.scheduler.seats.used, seats=self.scheduler.seats.names,
            kv_blocks_used=turn.blocks, kv_blocks=self.scheduler.kv.blocks,
        )  # fmt: skip
        self.gauges.step([job.name for job in turn.batch], turn.phase, turn.computed, counts)
        self.forget_ended()
        self.gauges.update(
            running=len(turn.batch) if self.scheduler.running else 0, waiting=len(self.scheduler.waiting),
            kv_blocks_used=turn.blocks if self.scheduler.running else 0,
            admissions_total=len(turn.admitted), preemptions_total=len(turn.preempted),
            **self.account.metrics(turn), **self.account.waiting(self.scheduler.waiting),
        )  # fmt: skip

    def next_step(self):
        """Of a step that waits for the clock: who would be in it, and who not."""
        batch = self.scheduler.next_batch()
        rest = [job.name for job in self.scheduler.line() if job not in batch]
        told = queued(rest, self.scheduler.why(batch))
        return {"ids": [job.name for job in batch], **told, "seats": self.scheduler.seats.names}

    def nothing_to_do(self):
        """Everybody has left, and perhaps not by a step."""
        self.clock.idle()
        self.gauges.update(running=0, waiting=0, kv_blocks_used=0, **self.account.waiting([]))
        if self.ended:
            seats = self.scheduler.seats.names
            self.log.write(time.monotonic(), [], kind="change", ended=self.ended, slots_used=0, seats=seats)
            self.forget_ended()

    def forget_ended(self):
        for name in self.ended:
            self.texts.forget(name)
            self.gauges.gone(name)
        self.ended = {}

    def finalize(self):
        self.inbox.put(CLOSE)
        self.thread.join()
        for job in self.scheduler.abandon(Refusal("the model is being unloaded")):
            self.answer(job)
        self.gauges.close()
        self.log.close()


def send(request, ids, context, last, flags):
    tensors = [
        pb_utils.Tensor("output_ids", np.array([[ids]], dtype=np.int32)),
        pb_utils.Tensor("context_ids", np.array([context], dtype=np.int32)),
        pb_utils.Tensor("last", np.array([[last]])),
    ]
    request.get_response_sender().send(pb_utils.InferenceResponse(tensors), flags)
