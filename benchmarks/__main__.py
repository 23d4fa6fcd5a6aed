"""``python -m benchmarks [NAME...]``: measure the project against its yardsticks and print the ratios.

Each benchmark compares within its own run (these machines' speeds drift), gives medians, and writes
``results/benchmarks/<name>.json``.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import codegen, compose_up, fuzz, iterative, kills, llm, sequence, start_up
from labctl.measure.results import machine, versions
from labctl.workspace import Workspace, atomic_write

ALL = {
    "iterative": iterative.run,
    "batching": llm.batching,
    "hundred": llm.hundred,
    "sequence": sequence.run,
    "codegen": codegen.stepped,
    "codegen-350m": codegen.true_shape,
    "compose-up": compose_up.run,
}
# With options of their own.
MORE = {
    "start-up": start_up.run,
    "kills": lambda options: kills.run(options.count or 1000),
    "fuzz": fuzz.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[1])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join([*ALL, *MORE])}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant")
    parser.add_argument("--count", type=int, help="kills: how often (1000); fuzz: requests (10000)")
    fuzz.options(parser)
    start_up.options(parser)
    options = parser.parse_args()
    if unknown := set(options.names) - {*ALL, *MORE}:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    for name in options.names or [*ALL, *MORE]:
        print(f"\n== {name}", flush=True)
        found = MORE[name](options) if name in MORE else ALL[name](options.rounds)
        document = {"benchmark": name, "versions": versions(), "machine": machine(), "found": found}
        atomic_write(Workspace.find().root / "results" / "benchmarks" / f"{name}.json", json.dumps(document, indent=1))


if __name__ == "__main__":
    sys.exit(main())
