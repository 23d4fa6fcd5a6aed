"""vLLM alone, as it runs by default: its own scheduler, which decides a step while the GPU computes another.

A process of its own, in the layer of vLLM's packages: one JSON object on standard input (the engine's arguments, and
the requests as [prompt ids, tokens of the answer] with the limits on the batch, or how many requests decode at once
without and with the recorder), one line of JSON for each measurement.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from labserve.vllm.setup import ENVIRONMENT

SAMPLING = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}
PROMPT, ANSWER = 100, 150  # tokens, of requests that decode beside the recorder
ROUNDS = 4


def main() -> None:
    asked = json.load(sys.stdin)
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    began = time.monotonic()
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    recorded = "running" in asked
    arguments = asked["arguments"]
    if recorded:
        arguments |= {"scheduler_cls": "labsched.vllm.RecordingScheduler"}
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
    core = engine.engine_core.engine_core
    scheduler = core.scheduler
    name = (
        "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
    )  # of vLLM 0.26
    tell(what="start", seconds=time.monotonic() - began, scheduler=type(scheduler).__name__)

    def run(requests: list[Any]) -> tuple[list[float], list[float]]:
        """Seconds to the end of each request, all sent at once, and of each step."""
        begun, over, steps = time.monotonic(), [], list[float]()
        for number, (ids, tokens) in enumerate(requests):
            params = SamplingParams(max_tokens=tokens, output_kind=RequestOutputKind.DELTA, **SAMPLING)
            engine.add_request(str(number), {"prompt_token_ids": ids}, params)
        while engine.has_unfinished_requests():
            before = time.monotonic()
            over += [time.monotonic() - begun for output in engine.step() if output.finished]
            steps.append(time.monotonic() - before)
        while core.batch_queue:  # a step that was decided before the last request ended
            engine.step()
        return over, steps

    if recorded:
        beside_recorder(scheduler, run, asked["running"])
        return
    run([(ids[::-1], tokens) for ids, tokens in asked["requests"][:10]])
    for limit in asked["limits"]:
        setattr(scheduler, name, limit)  # between two runs nothing is in the engine
        over, steps = run(asked["requests"])
        tell(what="alone", limit=limit, seconds=max(over), mean_s=sum(over) / len(over), steps=len(steps))


def beside_recorder(scheduler: Any, run: Callable[[list[Any]], Any], sizes: list[int]) -> None:
    """The median step of requests that all decode, in turn by vLLM's own scheduler and by the one that records."""
    chance = random.Random(1)
    recording = type(scheduler)
    plain = next(kind for kind in recording.__mro__ if kind.__module__.startswith("vllm."))
    for size in sizes:
        requests = [([chance.randrange(5, 1200) for _ in range(PROMPT)], ANSWER) for _ in range(size)]
        run(requests)  # the first is slower
        for number in range(2 * ROUNDS):
            kind = (plain, recording, recording, plain)[number % 4]
            scheduler.__class__ = kind
            over, steps = run(requests)
            full = sorted(steps[len(steps) // 4 : -len(steps) // 4])  # all decode
            tell(
                what="recorder",
                running=size,
                recorded=kind is recording,
                open=scheduler._noted.files.open,  # else nothing was recorded
                seconds=max(over),
                step_ms=1e3 * statistics.median(full),
                mean_ms=1e3 * statistics.fmean(full),
            )
        scheduler.__class__ = recording


def tell(**row: Any) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
