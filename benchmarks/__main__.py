"""``python -m benchmarks [NAME...]``: measure the project against its yardsticks and print the ratios.

Without a name it runs the yardsticks; the slow ones (``gpu``, ``predict``, ...) run only by name.

Each benchmark compares within its own run (these machines' speeds drift), gives medians, and writes
``results/benchmarks/<name>.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from benchmarks import (
    answers,
    balancer,
    checks,
    codegen,
    compose_up,
    decode,
    door,
    engines,
    explain,
    gpu,
    gpu_levels,
    iterative,
    kv_precision,
    llm,
    predict,
    record_cost,
    replica_start,
    sequence,
    start_up,
    step_cost,
    watch,
    watch_cost,
)
from labctl.workspace import Workspace
from labkit import proxies
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence.results import describe_machine, installed_versions


def beside_a_gpu(options: argparse.Namespace) -> dict[str, Any]:
    from benchmarks import pace  # PyTorch takes seconds to import

    return pace.run()


YARDSTICKS = {
    "start-up": start_up.run,
    "checks": checks.run,
    "decode": decode.run,
    "iterative": lambda options: iterative.run(options.rounds),
    "batching": lambda options: llm.batching(options.rounds),
    "hundred": lambda options: llm.hundred(options.rounds),
    "sequence": lambda options: sequence.run(options.rounds),
    "codegen": lambda options: codegen.stepped(options.rounds),
    "codegen-350m": lambda options: codegen.true_shape(options.rounds),
    "watch-cost": lambda options: watch_cost.run(options.rounds),
    "balancer": lambda options: balancer.run(options.rounds),
    "door": lambda options: door.run(options.rounds),
    "replica-start": lambda options: replica_start.run(options.rounds),
    "compose-up": lambda options: compose_up.run(options.rounds),
    "watch": watch.run,
}
# They need vLLM or a GPU, or take long: only by name.
LONG = {
    "engines": engines.run,
    "record-cost": lambda options: record_cost.run(options.rounds),
    "kv-precision": kv_precision.run,
    "gpu": gpu.run,
    "gpu-levels": gpu_levels.run,
    "pace": beside_a_gpu,
    "step-cost": lambda options: step_cost.run(options.rounds),
    "predict": predict.run,
    "explain": explain.run,
}
EVERY = {**YARDSTICKS, **LONG}


def main() -> None:
    proxies.spare_loopback()
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[2])
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"default: {', '.join(YARDSTICKS)}. By name alone, for they take long: {', '.join(LONG)}",
    )
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant")
    parser.add_argument("--count", type=int, help="kv-precision: prompts (16)")
    parser.add_argument(
        "--part",
        action="append",
        choices=(*predict.PARTS, *gpu.PARTS),
        help="only this part; may be repeated (predict: its four; gpu: start, workload, ...)",
    )
    answers.options(parser)
    decode.options(parser)
    engines.options(parser)
    explain.options(parser)
    gpu.options(parser)
    predict.options(parser)
    start_up.options(parser)
    options = parser.parse_args()
    if unknown := set(options.names) - EVERY.keys():
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    for name in options.names or YARDSTICKS:
        print(f"\n== {name}", flush=True)
        try:
            found = EVERY[name](options)
        except LabError as error:
            sys.exit(f"benchmarks: {error}")
        document = {"benchmark": name, "versions": installed_versions(), "machine": describe_machine(), "found": found}
        atomic_write(Workspace.find().root / "results" / "benchmarks" / f"{name}.json", json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
