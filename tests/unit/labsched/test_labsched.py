"""The scheduler's package by itself: what a notebook, vLLM's environment and an exercise import of it."""

from __future__ import annotations

import json
import subprocess
import sys

from checkout import ROOT

PACKAGE = ROOT / "src" / "labsched"
FITTED = "fitting"  # needs NumPy, and is imported when a step's time is fitted
MOST_S = 0.1  # of the processor
IMPORT = """
import importlib, json, sys, time
began, before = time.process_time(), {*sys.modules}
for name in sys.argv[1:]:
    importlib.import_module(f"labsched.{name}")
print(json.dumps([time.process_time() - began, sorted({*sys.modules} - before)]))
"""


def imported(*names: str) -> tuple[float, set[str]]:
    """Seconds of the processor that importing these modules takes, and what it brings into a fresh Python."""
    argv = [sys.executable, "-I", "-c", IMPORT, *names]
    seconds, modules = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout)
    return seconds, {module.partition(".")[0] for module in modules}


def test_it_needs_nothing_but_python() -> None:
    _, modules = imported(*(path.stem for path in PACKAGE.glob("*.py") if path.stem not in ("__init__", FITTED)))
    assert modules <= {"labsched", *sys.stdlib_module_names}


def test_the_scheduler_is_imported_within_a_tenth_of_a_second() -> None:
    assert min(imported("scheduler", "steplog")[0] for _ in range(5)) < MOST_S
