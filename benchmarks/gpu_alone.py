"""vLLM alone, as it runs by default: its own scheduler, which decides a step while the GPU computes another.

A process of its own, in the layer of vLLM's packages: one JSON object on standard input (the engine's arguments, the
requests as [prompt ids, tokens of the answer], the limits on the batch), one line of JSON for each limit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from labserve.vllm.setup import ENVIRONMENT

SAMPLING = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}


def main() -> None:
    asked = json.load(sys.stdin)
    os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
    began = time.monotonic()
    from vllm import EngineArgs, LLMEngine, SamplingParams
    from vllm.sampling_params import RequestOutputKind

    engine = LLMEngine.from_engine_args(EngineArgs(**asked["arguments"]))
    scheduler = engine.engine_core.engine_core.scheduler
    name = (
        "max_num_active_reqs" if hasattr(scheduler, "max_num_active_reqs") else "max_num_running_reqs"
    )  # of vLLM 0.26
    tell(what="start", seconds=time.monotonic() - began, scheduler=type(scheduler).__name__)

    def run(requests: list[Any]) -> tuple[list[float], int]:
        """Seconds to the end of each request, all sent at once, and the steps."""
        begun, over, steps = time.monotonic(), [], 0
        for number, (ids, tokens) in enumerate(requests):
            params = SamplingParams(max_tokens=tokens, output_kind=RequestOutputKind.DELTA, **SAMPLING)
            engine.add_request(str(number), {"prompt_token_ids": ids}, params)
        while engine.has_unfinished_requests():
            steps += 1
            over += [time.monotonic() - begun for output in engine.step() if output.finished]
        return over, steps

    run([(ids[::-1], tokens) for ids, tokens in asked["requests"][:10]])
    for limit in asked["limits"]:
        setattr(scheduler, name, limit)  # between two runs nothing is in the engine
        over, steps = run(asked["requests"])
        tell(what="alone", limit=limit, seconds=max(over), mean_s=sum(over) / len(over), steps=steps)


def tell(**row: Any) -> None:
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
