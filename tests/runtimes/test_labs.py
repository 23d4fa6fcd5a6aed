"""The same lab, by the same program, proves the same on both runtimes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ROOT
from lab_programs import unproven
from machinery import labctl, names_left
from step_logs import recorded

OPTIONS = ("--quick", "--ports", "auto", "--output", "r.json")


def leaves_nothing_but_the_callers_results(root: Path) -> None:
    """The results are the caller's own files; no server and no container is left."""
    files = [path for path in (root / "results").rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in files} == {os.getuid()}
    assert names_left(root) == set()


def test_a_lab_runs_whole_and_its_results_are_the_callers(own: Path, where: str) -> None:
    labctl("run", "faults", "--runtime", where, "--strict", *OPTIONS, root=own)
    assert [verdict["met"] for verdict in json.loads((own / "r.json").read_text())["verdicts"]] == [True]
    leaves_nothing_but_the_callers_results(own)


def test_make_lab_takes_containers_where_labs_runtime_says_so(
    own: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(ROOT / "Makefile", own)
    (own / ".venv").symlink_to(sys.prefix)
    if where == "compose":
        monkeypatch.setenv("LABS_RUNTIME", where)
    # The environment is that of the tests: it is not to be made anew, whatever its age.
    command = ["make", "-o", ".venv/.ready", "lab-iterative", f"ARGS=--verbose --texts {' '.join(OPTIONS)}"]
    done = subprocess.run(command, cwd=own, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    composed = [line for line in done.stderr.splitlines() if "$ docker compose" in line]
    served = any(line.endswith(" triton") for line in composed)
    asked = any(" client " in line and "client.py" in line for line in composed)
    assert served == asked == (where == "compose")
    leaves_nothing_but_the_callers_results(own)
    result = json.loads((own / "r.json").read_text())
    assert unproven("iterative", result) == []  # the overlap itself: test_lab_iterative.py, with a slowed clock
    assert result["metrics"]["simple"]["token_overlap"] == 0
    (folder,) = (own / "results" / "02-iterative-scheduling").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"result.json", "requests.jsonl", "timeline.png", "timeline.html", "trace.json", "report.md"} <= names
    requests = map(json.loads, (folder / "requests.jsonl").read_text().splitlines())
    answers = {"".join(text for _, text in request["responses"]) for request in requests}
    assert answers and answers <= {text for text, _ in recorded(folder / "timeline.html")["texts"]}
