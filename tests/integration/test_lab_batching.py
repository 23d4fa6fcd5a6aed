"""Lab 05 whole: four servers one after the other, their identity tests, the report and its verdicts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from lab_programs import unproven
from machinery import labctl


def test_the_whole_lab_runs_and_proves_its_verdicts(own: Path) -> None:
    labctl(
        "run",
        "batching",
        "--quick",
        "--runtime",
        "local",
        "--ports",
        "auto",
        "--set",
        "model=random:tiny-llama",
        "--output",
        "r.json",
        root=own,
    )
    assert unproven("batching", json.loads((own / "r.json").read_text())) == []
    (out,) = (own / "results" / "05-batching-policies").iterdir()
    sent = [json.loads(line) for line in (out / "requests.jsonl").read_text().splitlines()]
    with (out / "identity.csv").open(newline="") as stream:
        counted = {row["run"]: float(row["Total requests"]) for row in csv.DictReader(stream)}
    # The table's own count against the requests themselves, phase by phase.
    for phase in ("static", "inflight", "no-evict", "max-utilization"):
        of_phase = sum(n for run, n in counted.items() if run.rpartition("-")[0] == phase)
        assert of_phase == sum(request["phase"] == phase for request in sent) > 0
    assert (out / "timeline.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "trace.json").read_text())["traceEvents"]
    (story,) = json.loads(labctl("explain", str(out), waiting_for_memory(out), "--json", root=own).stdout)
    refused = [row["because"] for row in story["rows"] if row["what"] == "waits" and row["because"]]
    assert refused and all(by["need"] + by["used"] + by["reserve"] > by["blocks"] for by in refused)
    phases = [str(out / f"steps-{phase}.jsonl") for phase in ("no-evict", "max-utilization")]
    (parting,) = json.loads(labctl("explain", "--diff", *phases, "--json", root=own).stdout)
    assert parting["requests"] > 0 and parting["sides"]


def waiting_for_memory(out: Path) -> str:
    """A request that is first in the queue and waits for a block."""
    lines = map(json.loads, (out / "steps-no-evict.jsonl").read_text().splitlines())
    return next(
        str(line["waiting"][0]) for line in lines if line.get("why") == "no KV block" and not line.get("warm_up")
    )
