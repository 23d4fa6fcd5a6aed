"""Answers word by word from a loop of its own, as an LLM engine does; a step waits, as the CPU does for a GPU.

`execute` only hands requests over, and returns. Triton then calls them executed: its queue is always empty, however
many wait here. Only the model itself can say how many those are (`labs_waiting`).

labserve/loop.py has the thread that calls `step`, sends the words and writes the step log.
"""

import time

from labserve.loop import Job, Loop
from labserve.params import text
from labserve.tensors import read_number
from labserve.triton import input_reader, parameter, text_of

TOKENS, MOST = 8, 1000  # of an answer: the default, and the most
MOST_BYTES = 65_536  # of a text: an answer repeats its words


class TritonPythonModel:
    def initialize(self, args):
        self.seconds = float(parameter(args, "step_ms")) / 1e3
        self.loop = Loop(args, int(parameter(args, "seats")), self.job_of, self.step)

    def execute(self, requests):
        self.loop.receive(requests)

    def job_of(self, request):
        words = text(text_of(request, "text_input"), "text_input", MOST_BYTES).split() or ["..."]
        return Job(request, words, limit=int(read_number(input_reader(request), "max_tokens", TOKENS, 1, MOST)))

    def step(self):
        """Waiting requests take the free slots, and every request in a slot gets a word."""
        self.loop.drop_cancelled()
        while self.loop.waiting and self.loop.free_slots:
            self.loop.admit()
        if not self.loop.running:
            return
        with self.loop.step() as running:
            time.sleep(self.seconds)
            for job in running:
                self.loop.send(job, f"{job.prompt[job.made % len(job.prompt)]} ")

    def finalize(self):
        self.loop.close()
