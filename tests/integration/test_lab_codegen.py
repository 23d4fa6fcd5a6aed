"""Lab 04 end to end on a real Triton, as a person uses it, and its counters as they change."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from lab_programs import unproven
from lab_server import LabServer
from machinery import labctl
from waiting import DEADLINE_S

STACK = "codegen"


@pytest.mark.alone
def test_the_whole_lab_runs_and_proves_its_verdicts(own: Path) -> None:
    done = labctl(
        "run",
        STACK,
        "--quick",
        "--runtime",
        "local",
        "--ports",
        "auto",
        "--output",
        "r.json",
        "--set",
        "lengths=16",
        "--set",
        "step_seconds=2",
        root=own,
    )
    result = json.loads((own / "r.json").read_text())
    assert unproven(STACK, result) == []
    found = result["metrics"]
    assert found["comparison"]["users"] == 32
    assert found["batching"]["16"]["last"]["generator"]["mean_batch"] > 1
    assert found["one_by_one"]["16"]["last"]["generator"]["mean_batch"] == 1
    assert set(found["load_generator"]["by_protocol"]) == {"http", "grpc"}
    (folder,) = (own / "results" / "04-codegen-load-test").iterdir()
    names = {path.name for path in folder.iterdir()}
    assert {"result.json", "requests.jsonl", "timeline.png", "trace.json", "report.md"} <= names
    lines = (folder / "requests.jsonl").read_text().splitlines()
    protocols = {json.loads(line)["parameters"]["protocol"] for line in lines}
    assert protocols == {"HTTP", "gRPC"}, "both kinds of users were to ask"
    assert "requests/s in batches of" in done.stdout


@pytest.mark.xdist_group("codegen")
def test_metrics_shows_what_each_second_brought_until_it_is_stopped(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    lab_server(STACK)
    watching = subprocess.Popen(
        [sys.executable, "-m", "labctl", "metrics", STACK, "--follow"],
        cwd=checkout,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert watching.stdout is not None
    try:
        until(watching.stdout, "in the last second")
        labctl("infer", STACK, "-m", "ensemble", "-p", "def add(a, b):", "-o", "3", root=checkout)
        row = until(watching.stdout, "ensemble", lambda words: words[1] != "0")
        assert row[1:4] == ["1", "0", "1"]
        os.killpg(watching.pid, signal.SIGINT)
        assert watching.wait(DEADLINE_S) == 130
    finally:
        watching.kill()
        watching.communicate()


def until(lines: Iterable[str], beginning: str, right: Callable[[list[str]], bool] = lambda words: True) -> list[str]:
    """The words of the next line that begins so and is right."""
    return next(line.split() for line in lines if line.startswith(beginning) and right(line.split()))
