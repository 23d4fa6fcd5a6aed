"""The labs' scheduler over the engine in one process, without Triton: what Triton's cost is measured against.

    python benchmarks/llm_engine_loop.py ENGINE_FOLDER WORKLOAD.json --limit 16 [--static] [--threads 2]

WORKLOAD.json is a list of [prompt ids, output tokens]. Prints JSON: seconds, requests/s, tokens/s, engine steps.
"""

import argparse
import json
import time
from pathlib import Path

from labserve.inflight.features import Features
from labserve.inflight.job import Job
from labserve.inflight.kv_budget import KVBudget
from labserve.inflight.openvino_engine import BLOCK_SIZE, OpenVinoEngine
from labserve.inflight.policy import Policy
from labserve.inflight.sampling_options import Sampling
from labserve.inflight.scheduler import Scheduler


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("engine")
    parser.add_argument("workload", type=Path)
    parser.add_argument("--limit", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--static", action="store_true")
    options = parser.parse_args()
    workload = json.loads(options.workload.read_text(encoding="utf-8"))
    kv = KVBudget(1 + sum(len(ids) + limit for ids, limit in workload) // BLOCK_SIZE + len(workload), BLOCK_SIZE)
    engine = OpenVinoEngine(
        options.engine, kv, options.limit, exact=False, threads=options.threads, features=Features()
    )
    engine.warm_up()
    scheduler = Scheduler(engine, kv, Policy.GUARANTEED_NO_EVICT, options.limit, options.static)
    for timed in (False, True):
        for number, (ids, limit) in enumerate(workload if timed else workload[:10]):
            scheduler.submit(Job(str(number), ids, limit, Sampling()))
        began, steps = time.monotonic(), 0
        while not scheduler.idle:
            scheduler.turn()
            steps += 1
        seconds = time.monotonic() - began
    tokens = sum(limit for _, limit in workload)
    print(json.dumps({
        "seconds": seconds, "requests_per_second": len(workload) / seconds,
        "tokens_per_second": tokens / seconds, "steps": steps,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
