"""The same lab, from the same manifest, proves the same on both runtimes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from machinery import labctl, runtime


@pytest.mark.parametrize("lab", ["faults", "iterative"])
def test_a_lab_runs_whole_and_its_results_are_the_callers(own: Path, where: str, lab: str) -> None:
    done = labctl(
        "run", lab, "--quick", "--strict", "--runtime", where, "--ports", "auto", "--json", "r.json", root=own
    )
    assert all(verdict["met"] for verdict in json.loads((own / "r.json").read_text())["verdicts"]), done.stdout
    files = [path for path in (own / "results").rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in files} == {os.getuid()}
    assert runtime(own, where).stacks() == set()
