"""``python -m benchmarks [NAME...]``: measure the project against its yardsticks and print the ratios.

Each benchmark compares within its own run (these machines' speeds drift), gives medians, and writes
``results/benchmarks/<name>.json``.
"""

from __future__ import annotations

import argparse
import json
import sys

from benchmarks import codegen, compose_up, iterative, kills, llm, sequence, start_up
from labctl.measure.results import machine, versions
from labctl.workspace import Workspace, atomic_write

ALL = {
    "iterative": iterative.run,
    "batching": llm.batching,
    "hundred": llm.hundred,
    "sequence": sequence.run,
    "codegen": codegen.stepped,
    "codegen-350m": codegen.true_shape,
    "start-up": start_up.run,
    "compose-up": compose_up.run,
    "kills": kills.run,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[1])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ALL)}; default: all")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each variant")
    parser.add_argument("--count", type=int, default=1000, help="how often the benchmark kills does so")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ALL):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    for name in options.names or ALL:
        print(f"\n== {name}", flush=True)
        found = ALL[name](options.count if name == "kills" else options.rounds)
        document = {"benchmark": name, "versions": versions(), "machine": machine(), "found": found}
        atomic_write(Workspace.find().root / "results" / "benchmarks" / f"{name}.json", json.dumps(document, indent=1))


if __name__ == "__main__":
    sys.exit(main())
