"""Answers word by word from a loop of its own, as an LLM engine does; a step waits, as the CPU does for a GPU.

`execute` only hands requests over, and returns. Triton then calls them executed: its queue is always empty, however
many wait here. Only the model itself can say how many those are (`labs_waiting`).
"""

import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from labserve.clock import Clock
from labserve.gauges import Gauges
from labserve.guard import Guard
from labserve.params import text
from labserve.seats import Seats
from labserve.steplog import Names, StepLog, queued
from labserve.tensors import number
from labserve.triton import instance, parameter, reader, refuse, respond, text_of

TOKENS, MOST = 8, 1000  # of an answer: without a word, and at most
MOST_BYTES = 65_536  # of a text: an answer repeats its words


@dataclass
class Job:
    request: Any
    name: str
    words: list[str]
    wanted: int
    made: int = 0
    why: str = ""  # it is over; "" while it is not


class TritonPythonModel:
    def initialize(self, args):
        run_dir, model = parameter(args, "run_dir"), args["model_name"]
        self.guard = Guard(args)
        self.seconds = float(parameter(args, "step_ms")) / 1e3
        self.count = int(parameter(args, "seats"))
        self.seats = Seats(self.count)
        self.log, self.clock = StepLog(run_dir, model, instance(args)), Clock(run_dir, model, instance(args))
        self.gauges = Gauges(model, slots=self.count, running=0, waiting=0, steps_total=0, tokens_total=0)
        self.waiting, self.running = deque(), []
        self.names = Names()
        self.changed, self.stopped = threading.Condition(), False
        self.loop = threading.Thread(target=self.serve, daemon=True)
        self.loop.start()

    def execute(self, requests):
        for request in requests:
            try:
                self.guard.check(request)
                job = self.job_of(request)
                self.gauges.arrived(job.name, request)
            except Exception as error:
                refuse(request, self.guard.words(error))
                continue
            with self.changed:
                self.waiting.append(job)
                self.show()
                self.changed.notify()

    def job_of(self, request):
        words = text(text_of(request, "text_input"), "text_input", MOST_BYTES).split() or ["..."]
        wanted = int(number(reader(request), "max_tokens", TOKENS, 1, MOST))
        return Job(request, self.names.take(request.request_id()), words, wanted)

    def serve(self):
        """Run; and should the loop itself fail, tell everybody who is here, and whoever comes later."""
        try:
            self.run()
        except Exception as error:
            words = self.guard.words(error)
            while self.work():
                with self.changed:
                    lost = [*self.running, *self.waiting]
                    self.running.clear()
                    self.waiting.clear()
                for job in lost:
                    with suppress(Exception):
                        if not job.why:
                            refuse(job.request, words)

    def run(self):
        """The engine's loop: whoever waits takes a free seat, everybody in a seat gets a word, and again."""
        while self.work():
            with self.changed:
                ended = self.leave()  # seats that nobody sits in are free before others are asked in
                joined = self.admit(ended)
                waiting = [job.name for job in self.waiting]
            ids = [job.name for job in self.running]
            line = {"rows": [self.seats.of(id) for id in ids], **queued(waiting, "no slot")}
            if not ids:
                continue
            self.clock.wait(lambda ids=ids, line=line: {"ids": ids, **line, "seats": self.seats.names})
            started = time.monotonic()
            time.sleep(self.seconds)
            phase = "".join("d" if job.made else "p" for job in self.running)
            tokens = [1 if job.made else len(job.words) for job in self.running]
            for job in self.running:
                self.say(job)
            made = [1] * len(ids)
            self.gauges.step(ids, phase, tokens, made)
            ended |= self.leave()
            self.log.write(
                started, ids, **line, phase=phase, tokens=tokens, made=made, joined=joined, ended=ended,
                slots=self.count, slots_used=self.seats.used, seats=self.seats.names,
            )  # fmt: skip
            self.clock.done(left=len(self.running) + len(waiting))

    def say(self, job):
        """The next word. Where it cannot be sent (shared memory is full), this one ends, and nobody else notices."""
        word, last = job.words[job.made % len(job.words)], job.made + 1 == job.wanted
        job.made += 1
        try:
            respond(job.request, f"{word} ", last)
            job.why = "length" if last else ""
        except Exception as error:
            job.why = "failed"
            with suppress(Exception):
                refuse(job.request, self.guard.words(error))

    def work(self):
        """Wait for something to do; False at the end."""
        with self.changed:
            self.show()
            if not self.waiting and not self.running:
                self.clock.idle()
            self.changed.wait_for(lambda: self.stopped or self.waiting or self.running)
            return not self.stopped

    def admit(self, ended):
        joined = []
        while self.waiting and self.seats.used < self.count:
            job = self.waiting.popleft()
            if self.is_gone(job):  # in the queue: it never takes a seat
                ended[job.name] = job.why
                self.forget(job)
                continue
            self.seats.take(job.name)
            self.running.append(job)
            joined.append(job.name)
        return joined

    def leave(self):
        """Whoever has all words, or whose client has gone, gives the seat back."""
        ended = {}
        for job in list(self.running):
            if job.why or self.is_gone(job):
                ended[job.name] = job.why
                self.running.remove(job)
                self.seats.free(job.name)
                self.forget(job)
        return ended

    def is_gone(self, job):
        """Whether its client has; then this is its end."""
        if job.request.is_cancelled():
            job.why = "cancelled"
            with suppress(Exception):
                respond(job.request, "", last=True)
        return bool(job.why)

    def forget(self, job):
        self.gauges.gone(job.name)
        self.names.free(job.name)

    def show(self):
        self.gauges.update(running=len(self.running), waiting=len(self.waiting))

    def finalize(self):
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.loop.join()
        self.gauges.close()
        self.log.close()
