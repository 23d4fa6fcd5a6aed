"""Lab 06's report: for each of the five lessons a table, a picture, and the numbers of its verdicts."""

import sys
from pathlib import Path

import lessons

from labkit.evidence.records import Lane
from labkit.evidence.report import Report

PHASES = {
    "chunked": (lessons.chunked, [f"budget-{tokens}" for tokens in (8192, 1024, 512, 256, 128, 64)]),
    "prefix": (lessons.prefix, ["prefix-off", "prefix-on", "prefix-small"]),
    "speculation": (lessons.speculation, ["plain", "prompt-lookup", "draft"]),
    "tenants": (lessons.tenants, ["fcfs", "priority", "shortest-first", "fair"]),
    "triton": (lessons.triton, ["triton"]),
}


def main() -> None:
    every = [phase for _, phases in PHASES.values() for phase in phases]
    report = Report(Path(sys.argv[1]), "Lab 06: modern schedulers", every)
    metrics = {}
    for name, (lesson, phases) in PHASES.items():
        if runs := {phase: report.phases[phase] for phase in phases if phase in report.phases}:
            metrics[name] = lesson(report, runs)
    report.finish(metrics, [Lane.from_json(name, run) for name, run in report.phases.items() if "records" in run])


if __name__ == "__main__":
    main()
