"""A stack's engine without Triton: the same decoder, or scheduler and engine, on the same requests, in one process.

    python -m labserve.alone FILE

FILE is what `labctl bench --against-engine` writes, as JSON: the `loop`, the `parameters` of the model's config.pbtxt,
the server's `env`, and the `requests`, all there from the start: [ids, new tokens] each. Printed is JSON: `seconds`,
and the steps as a step log has them, without their requests.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labsched.step import Step
from labserve.serving import PACKAGES

Requests = list[tuple[list[int], int]]
Word = Callable[[str], str]  # a parameter of config.pbtxt; "" if there is none
WARM_UP_REQUESTS, WARM_UP_TOKENS = 4, 4


Submit = Callable[[int, list[int], int], None]  # a request's number, ids and new tokens
Alone = tuple[Any, Submit]  # a scheduler, and what puts a request into it


def gpt2(word: Word) -> Alone:
    """Lab 02's decoder: waiting requests join at the next token, as in `iterative-gpt2`."""
    from labserve.gpt2.decoders import CachedDecoder, Decoder, RecomputingDecoder
    from labserve.gpt2.model import GPT2
    from labserve.gpt2.sequences import Sequence
    from labserve.slot_scheduler import SlotScheduler
    from labserve.text.detok import Detokenizer
    from labserve.text.prompts import open_tokenizer
    from labserve.text.sampling import Sampler

    tokenizer = open_tokenizer(word("model_path"))
    model = GPT2(word("model_path"), threads=int(word("threads")), precision=word("precision") or "auto")
    slots = int(word("slots"))
    cached = word("kv_cache") == "true"
    decoder: Decoder = CachedDecoder(model, slots) if cached else RecomputingDecoder(model)
    scheduler = SlotScheduler(decoder, slots)

    def submit(number: int, ids: list[int], new: int) -> None:
        scheduler.submit(Sequence(list(ids), len(ids), len(ids) + new, None, Sampler(), Detokenizer(tokenizer)))

    return scheduler, submit


def inflight(word: Word) -> Alone:
    """The engine of `tensorrt_llm` with its scheduler."""
    from labsched.request import Request, Sampling
    from labserve.inflight.setup import open_scheduler

    scheduler = open_scheduler(word, "cpu").scheduler

    def submit(number: int, ids: list[int], new: int) -> None:
        scheduler.submit(Request(str(number), list(ids), new, Sampling(), number=number))

    return scheduler, submit


def serve(scheduler: Any, submit: Submit, requests: Requests) -> list[Step]:
    """Compute steps until no request is left. Raises the error of a request that fails."""
    for number, (ids, new) in enumerate(requests):
        submit(number, ids, new)
    steps = []
    while not scheduler.idle:
        began = time.monotonic()
        step = scheduler.step(scheduler.plan())
        if failed := [request.error for request in step.finished if request.error]:
            raise failed[0]
        steps.append(Step((), began, time.monotonic(), engine_us=step.engine_us))
    return steps


LOOPS: dict[str, Callable[[Word], Alone]] = {"gpt2": gpt2, "inflight": inflight}


def run_alone(task: dict[str, Any]) -> dict[str, Any]:
    """The printed result for the content of FILE; see above."""
    scheduler, submit = LOOPS[task["loop"]](lambda name: str(task["parameters"].get(name, "")))
    requests: Requests = [(ids, new) for ids, new in task["requests"]]
    serve(scheduler, submit, [(ids, min(new, WARM_UP_TOKENS)) for ids, new in requests[:WARM_UP_REQUESTS]])
    began = time.monotonic()
    steps = serve(scheduler, submit, requests)
    return {"seconds": time.monotonic() - began, "steps": [step.to_json() for step in steps]}


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    os.environ.update(task["env"])  # before anything that computes is imported
    if packages := os.environ.get(PACKAGES):
        sys.path.insert(0, packages)
    print(json.dumps(run_alone(task)))


if __name__ == "__main__":
    main()
