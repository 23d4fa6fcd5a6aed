"""vLLM alone, as it runs by default: its own scheduler, which decides a step while the GPU computes another.

A process of its own, in the layer of vLLM's packages: one JSON object on standard input (the engine's arguments, the
requests as [prompt ids, tokens of the answer], and the limits on the batch), one line of JSON for each measurement. At
the end the scheduler is watched as it is behind Triton, with the first limit: what that adds to a step.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

from benchmarks import outside_triton  # noqa: F401
from labsched.vllm.decision import StepsInFlight
from labserve.vllm.setup import ENVIRONMENT
from labserve.vllm.watched import watched_scheduler

SAMPLING = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}


def main() -> None:
    asked = json.load(sys.stdin)
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    began = time.monotonic()
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = LLMEngine.from_engine_args(EngineArgs(**asked["arguments"]))
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

    def measure(what: str, limit: int) -> None:
        setattr(scheduler, name, limit)  # between two runs nothing is in the engine
        over, steps = run(asked["requests"])
        tell(
            what=what,
            limit=limit,
            seconds=max(over),
            mean_s=sum(over) / len(over),
            steps=len(steps),
            step_ms=1e3 * statistics.median(steps),
        )

    run([(ids[::-1], tokens) for ids, tokens in asked["requests"][:10]])
    for limit in asked["limits"]:
        measure("alone", limit)
    watched = watched_scheduler(type(scheduler))
    vars(scheduler).update(in_flight=StepsInFlight(), landed=None, grounded=False, tables={})
    scheduler.__class__ = watched
    measure("watched", asked["limits"][0])


def tell(**row: Any) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
