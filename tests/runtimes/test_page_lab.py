"""A lab is a folder: the one of docs/develop/writing-a-lab.md runs on both runtimes with no edit anywhere else."""

from __future__ import annotations

import json
from pathlib import Path

import page_lab
import pytest
from machinery import labctl, names_left

pytestmark = pytest.mark.night


def test_the_lab_of_the_page_runs_in_a_fresh_checkout(own: Path, where: str) -> None:
    page_lab.put_into(own)
    # Half a second for an execution: on a busy machine too the client has sent several requests by its end.
    words = ("--set", "seconds=0.5", "--strict", "--runtime", where, "--ports", "auto", "--output", "r.json")
    done = labctl("run", "till", *words, root=own)
    found = json.loads((own / "r.json").read_text())
    assert [verdict["met"] for verdict in found["verdicts"]] == [True, True], done.stdout
    assert found["metrics"]["alone"]["executions"] == 24
    assert found["metrics"]["together"]["executions"] < 24
    assert names_left(own) == set()
