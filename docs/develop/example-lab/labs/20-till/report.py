"""Both phases side by side."""

import sys
from pathlib import Path

from labkit.evidence import results
from labkit.tables import markdown

out = Path(sys.argv[1])
phases = {name: results.read_phase(out, name) for name in ("alone", "together")}
given = results.context_of(out, "together")
results.write_result(
    out, given["lab"], given["settings"], phases, phases["together"]["triton"], runtime=given["runtime"]
)
rows = [(name, data["largest_batch"], data["executions"], f"{data['seconds']:.2f}") for name, data in phases.items()]
table = markdown(rows, ("phase", "largest batch", "executions", "seconds"))
(out / "report.md").write_text(f"# A till\n\n{table}\n", encoding="utf-8")
