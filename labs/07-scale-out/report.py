"""Lab 07's report: for each of the five parts a table, a picture, and the numbers of its verdicts."""

import sys
from pathlib import Path

import lessons

from labkit.evidence.report import Report

PARTS = {
    "spread": (lessons.spread, ["spread-l4", "spread-client", "spread-l7"]),
    "sequences": (lessons.sequences, ["sequences-l7", "sequences-hash"]),
    "speed_up": (lessons.speed_up, ["speed-up"]),
    "lost": (lessons.lost, ["nothing-lost"]),
    "signal": (lessons.signal, ["when-to-scale"]),
}


def main() -> None:
    every = [phase for _, phases in PARTS.values() for phase in phases]
    report = Report(Path(sys.argv[1]), "Lab 07: beyond one server", every)
    metrics = {}
    for name, (lesson, phases) in PARTS.items():
        if runs := {phase: report.phases[phase] for phase in phases if phase in report.phases}:
            metrics[name] = lesson(report, runs)
    report.finish(metrics, [])


if __name__ == "__main__":
    main()
