"""The two servers as the lab's clients see them: a request goes to one of them, or from one to the other."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from tokenizers import Tokenizer

from labkit.client.ask import TextStream, tensor, text_tensor
from labkit.errors import LabError

MODEL = "apart-gpt2"
PREFILL, DECODE = "1", "2"  # the two servers, where they share the work by kind
TIMEOUT_S = 120


class Fleet:
    """A stream to each server. Use as a context manager."""

    def __init__(self, lab):
        self.tokenizer = Tokenizer.from_file(f"{lab.tokenizer_dir}/tokenizer.json")
        self._endpoints = {name: each["grpc"] for name, each in lab.replicas.items()}
        self.names = list(self._endpoints)
        words = sorted(f" {word[1:]}" for word in self.tokenizer.get_vocab() if word[0] == "Ġ" and word[1:].isalpha())
        self._words = [word for word in words if len(self.ids(word)) == 1]

    def __enter__(self):
        with ExitStack() as stack:
            streams = {name: stack.enter_context(TextStream(at)) for name, at in self._endpoints.items()}
            self._stack = stack.pop_all()
        self._streams = streams
        return self

    def __exit__(self, *exc):
        self._stack.close()

    def text(self, rng, tokens):
        """A text of exactly so many tokens."""
        return "".join(rng.choices(self._words, k=tokens))

    def ids(self, text):
        return self.tokenizer.encode(text).ids

    def whole(self, server, prompt, tokens, label="", route=""):
        """A request that one server computes from beginning to end; `route` says in its log why that one was chosen."""
        return self._sent(server, prompt, tokens, label, route=route)

    def apart(self, prompt, tokens, label=""):
        """A request whose prompt server 1 computes; server 2 takes it over. Its record begins where the first began."""
        inputs = [text_tensor("text_input", prompt), tensor("hand_over", True, bool)]
        stream = self._streams[PREFILL]
        first = stream.send_inputs(MODEL, prompt, inputs, output="handed_over", max_tokens=tokens, ignore_eos=True)
        stream.wait(first, timeout=TIMEOUT_S)
        record = self._sent(DECODE, prompt, tokens, label, first.text)
        record.start = first.start
        return record

    def _sent(self, server, prompt, tokens, label, handed_over="", route=""):
        texts = {"text_input": prompt, "handed_over": handed_over, "route": route}
        inputs = [text_tensor(name, text) for name, text in texts.items() if text]
        stream = self._streams[server]
        record = stream.send_inputs(MODEL, prompt, inputs, max_tokens=tokens, ignore_eos=True)
        record.label = label or record.label
        stream.wait(record, timeout=TIMEOUT_S)
        return record


def steps_of(lab, records):
    """The steps since the first of these was sent, when all of them are in the log: an answer comes before its line."""
    wanted, deadline = {record.id for record in records}, time.monotonic() + TIMEOUT_S
    while True:
        steps = lab.steps(MODEL, records)
        if wanted <= {id for step in steps for id in step.ids}:
            return steps
        if time.monotonic() > deadline:
            raise LabError(
                "the step log lacks requests that were answered", f"within {TIMEOUT_S} s", code="step-log-incomplete"
            )
        time.sleep(0.02)


def at_times(times, send):
    """Call `send(number)` at each of these seconds from now, each call in a thread of its own; what they return."""
    began = time.monotonic()
    with ThreadPoolExecutor(max(1, len(times))) as pool:
        calls = []
        for number, at in enumerate(times):
            threading.Event().wait(max(0.0, began + at - time.monotonic()))
            calls.append(pool.submit(send, number))
        return [call.result() for call in calls]
