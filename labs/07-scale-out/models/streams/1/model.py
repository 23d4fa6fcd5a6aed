"""Answers word by word from a loop of its own, as an LLM engine does; a step waits, as the CPU does for a GPU.

`execute` only hands requests over, and returns. Triton then calls them executed: its queue is always empty, however
many wait here. Only the model itself can say how many those are (`labs_waiting`).

labserve/driver.py has the loop: it gives waiting requests the free slots, calls `step`, sends the words and writes the
step log.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

from labserve.driver import DriverThread, PieceAnswers
from labserve.guard import Guard
from labserve.observe.recorder import Recorder
from labserve.params import read_number, text
from labserve.slot_scheduler import SlotEngine, SlotRequest, SlotScheduler
from labserve.triton import input_reader, parameter, text_of

TOKENS, MOST = 8, 1000  # of an answer: the default, and the most
MOST_BYTES = 65_536  # of a text: an answer repeats its words


@dataclass(eq=False)
class Words(SlotRequest):
    """A request. Its client is sent `limit` words, one a step."""

    prompt: list[str]
    limit: int
    output: list[str] = field(default_factory=list)
    ids = ()  # a word is no token

    @property
    def made(self):
        return len(self.output)


class TritonPythonModel(SlotEngine):
    def initialize(self, args):
        self.seconds = float(parameter(args, "step_ms")) / 1e3
        self.guard = Guard(args)
        scheduler = SlotScheduler(self, int(parameter(args, "seats")))
        recorder = Recorder(args, scheduler, gauges={"waiting": 0})
        answers, here = PieceAnswers(), Path(__file__).parent
        self.driver = DriverThread(self.guard, scheduler, answers, recorder, self.read, beside=here, forgiving=True)
        self.driver.start()

    def execute(self, requests):
        self.driver.put(requests)

    def read(self, request, number):
        """What a request asks for."""
        self.guard.check(request)
        words = text(text_of(request, "text_input"), "text_input", MOST_BYTES).split() or ["..."]
        limit = int(read_number(input_reader(request), "max_tokens", TOKENS, 1, MOST))
        return Words(words, limit, request=request, id=request.request_id())

    def tokens(self, batch):
        return [1 if words.output else len(words.prompt) for words in batch]

    def step(self, batch):
        """Every request in a slot gets a word."""
        time.sleep(self.seconds)
        for words in batch:
            words.piece = f"{words.prompt[len(words.output) % len(words.prompt)]} "
            words.output.append(words.piece)
            if len(words.output) == words.limit:
                words.finish("length")
        return {}

    def finalize(self):
        self.driver.close()
