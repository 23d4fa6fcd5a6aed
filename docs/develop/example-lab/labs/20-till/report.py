"""Both phases side by side."""

import sys
from pathlib import Path

from labkit.evidence.report import Report

report = Report(Path(sys.argv[1]), "A till", ["alone", "together"])
rows = [
    (name, data["largest_batch"], data["executions"], f"{data['seconds']:.2f}") for name, data in report.phases.items()
]
report.table("Requests that share an execution", rows, ("phase", "largest batch", "executions", "seconds"))
report.finish(report.phases, [])
