"""Lab 09's report: of each of the four parts a table, a picture, and the numbers of its verdicts."""

import sys
from pathlib import Path

import lessons

from labkit.evidence.records import Lane
from labkit.evidence.report import Report

PARTS = {"apart": lessons.apart, "load": lessons.load, "routing": lessons.routing, "offload": lessons.offload}


def main() -> None:
    report = Report(Path(sys.argv[1]), "Lab 09: prefill apart from decode", list(PARTS))
    metrics = {name: PARTS[name](report, run) for name, run in report.phases.items()}
    ways = report.phases.get("apart", {})
    report.finish(metrics, [Lane.from_json(way, ways[way]) for way in ("together", "apart") if way in ways])


if __name__ == "__main__":
    main()
