"""Each exhibit of the museum many times: how often it reproduces, and how often its work-around passes.

Each run is written to ``results/benchmarks/museum.jsonl`` as it ends. A second call goes on where one was interrupted,
for as long as the exhibit's files are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from labctl.museum import exhibit as exhibits
from labctl.museum import visit
from labctl.museum.exhibit import Exhibit
from labctl.workspace import Workspace
from labkit.tables import format_table

RUNS, AT_ONCE = 50, 2
GOOD = {False: visit.REPRODUCES, True: visit.PASSES}  # by whether it is run with its work-around
HEADER = ["exhibit", "reproduces", "share", "work-around passes", "share", "seconds", "other verdicts"]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=RUNS, help="museum: runs of each exhibit, and of each work-around")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Run every exhibit, the wing that ends its server too, until each has that many runs."""
    workspace = Workspace.find()
    log = workspace.root / "results" / "benchmarks" / "museum.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    shown = {one.number: one for one in exhibits.find_exhibits(workspace)}
    files = {number: _digest(one) for number, one in shown.items()}
    lines = [line for line in _logged(log) if files.get(line["number"]) == line["files"]]
    counts = Counter((line["number"], line["workaround"]) for line in lines)
    load = [os.getloadavg()[0]]
    for number in range(asked.runs):
        for workaround, good in GOOD.items():
            chosen = [one for one in shown.values() if counts[one.number, workaround] <= number]
            for ended in visit.run_all(workspace, chosen, workaround, "", AT_ONCE):
                line = {
                    "number": ended.number,
                    "workaround": workaround,
                    "files": files[ended.number],
                    "verdict": ended.verdict,
                    "measured": ended.measured,
                    "seconds": ended.seconds,
                }
                lines.append(line)
                counts[ended.number, workaround] += 1
                with log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                if ended.verdict != good:
                    print(f"run {number + 1}: {ended.number} {ended.verdict}: {ended.measured}", flush=True)
    load.append(os.getloadavg()[0])
    found = {number: _counted([line for line in lines if line["number"] == number]) for number in shown}
    print(format_table([_row(number, figures) for number, figures in found.items()], HEADER, right=range(1, 6)))
    print(f"load average before {load[0]:.1f}, after {load[1]:.1f}")
    return {"exhibits": found, "load": load}


def _counted(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """An exhibit's runs, by verdict, without and with its work-around."""
    plain, around = ([line for line in lines if line["workaround"] == way] for way in GOOD)
    return {
        "plain": dict(Counter(line["verdict"] for line in plain)),
        "workaround": dict(Counter(line["verdict"] for line in around)),
        "seconds": statistics.median([line["seconds"] for line in plain] or [0.0]),
    }


def _row(number: str, figures: dict[str, Any]) -> list[str]:
    cells, others = [number], []
    for way, key in ((False, "plain"), (True, "workaround")):
        verdicts = figures[key]
        good, whole = verdicts.get(GOOD[way], 0), sum(verdicts.values())
        cells += [f"{good} of {whole}", f"{good / max(1, whole):.0%}"]
        others += [f"{count} {verdict}" for verdict, count in verdicts.items() if verdict != GOOD[way]]
    return [*cells, f"{figures['seconds']:.1f}", ", ".join(others)]


def _logged(log: Path) -> Iterator[dict[str, Any]]:
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        try:
            yield json.loads(line)
        except ValueError:  # cut off when a run was killed
            continue


def _digest(exhibit: Exhibit) -> str:
    """A digest of all its files."""
    digest = hashlib.sha256()
    for path in sorted(exhibit.folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
