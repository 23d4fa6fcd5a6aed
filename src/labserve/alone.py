"""A stack's engine without Triton: the same decoder, or scheduler and engine, on the same requests, in one process.

    python -m labserve.alone FILE

FILE is what `labctl bench --against-engine` writes, as JSON: the `loop`, the `parameters` of the model's config.pbtxt,
the server's `env`, and the `requests`, all there from the start: [ids, new tokens] each. Printed is JSON: `seconds`,
and of each step when it began, when it ended (seconds of the monotonic clock) and how long of it the engine computed.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from labserve.serving import PACKAGES

Requests = list[tuple[list[int], int]]
Word = Callable[[str], str]  # a parameter of config.pbtxt; "" if there is none
WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4


class TimedStep(NamedTuple):
    """When a step began and ended, and how long of it the engine computed; in seconds."""

    began: float
    ended: float
    engine_s: float


Serve = Callable[[Requests], list[TimedStep]]


def gpt2(word: Word) -> Serve:
    """Lab 02's decode loop: waiting requests join at the next token, as in `iterative-gpt2`."""
    from labserve.gpt2.decoders import CachedDecoder, Decoder, RecomputingDecoder, step
    from labserve.gpt2.model import GPT2
    from labserve.gpt2.sequences import Sequence
    from labserve.text.detok import Detokenizer
    from labserve.text.prompts import open_tokenizer
    from labserve.text.sampling import Sampler

    tokenizer = open_tokenizer(word("model_path"))
    model = GPT2(word("model_path"), threads=int(word("threads")), precision=word("precision") or "auto")
    slots = int(word("slots"))
    cached = word("kv_cache") == "true"
    decoder: Decoder = CachedDecoder(model, slots) if cached else RecomputingDecoder(model)

    def serve(requests: Requests) -> list[TimedStep]:
        waiting = deque(
            Sequence(list(ids), len(ids), len(ids) + new, None, Sampler(), Detokenizer(tokenizer))
            for ids, new in requests
        )
        running: list[Sequence] = []
        steps = []
        while waiting or running:
            began = time.monotonic()
            while waiting and len(running) < slots:
                running.append(waiting.popleft())
            computing = time.monotonic()
            step(decoder, running)
            computed = time.monotonic()
            for sequence in running:
                if sequence.finished:
                    decoder.release(sequence)
            running = [sequence for sequence in running if not sequence.finished]
            steps.append(TimedStep(began, time.monotonic(), computed - computing))
        return steps

    return serve


def inflight(word: Word) -> Serve:
    """The engine of `tensorrt_llm` with its scheduler."""
    from labsched.request import Request
    from labsched.sampling_options import Sampling
    from labserve.inflight.setup import open_scheduler

    scheduler = open_scheduler(word, "cpu").scheduler

    def serve(requests: Requests) -> list[TimedStep]:
        for number, (ids, new) in enumerate(requests):
            scheduler.submit(Request(str(number), list(ids), new, Sampling(), number=number))
        steps = []
        while not scheduler.idle:
            began = time.monotonic()
            step = scheduler.step()
            if failed := [request.error for request in step.ended if request.error]:
                raise failed[0]
            steps.append(TimedStep(began, time.monotonic(), step.engine_s))
        return steps

    return serve


LOOPS: dict[str, Callable[[Word], Serve]] = {"gpt2": gpt2, "inflight": inflight}


def run_alone(task: dict[str, Any]) -> dict[str, Any]:
    """The printed result for the content of FILE; see above."""
    serve = LOOPS[task["loop"]](lambda name: str(task["parameters"].get(name, "")))
    requests: Requests = [(ids, new) for ids, new in task["requests"]]
    serve([(ids, min(new, WARM_UP_TOKENS)) for ids, new in requests[:WARM_UP_REQUESTS]])
    began = time.monotonic()
    steps = serve(requests)
    return {"seconds": time.monotonic() - began, "steps": steps}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.environ.update(task["env"])  # before anything that computes is imported
    if packages := os.environ.get(PACKAGES):
        sys.path.insert(0, packages)
    print(json.dumps(run_alone(task)))


if __name__ == "__main__":
    main()
