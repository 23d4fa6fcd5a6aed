"""The scheduler's package by itself: what a notebook, vLLM's environment and an exercise import of it."""

from __future__ import annotations

import json
import subprocess
import sys

from checkout import ROOT

PACKAGE = ROOT / "src" / "labsched"
FITTED = "replay.fitting"  # needs NumPy, and is imported when a step's time is fitted
IMPORT = """
import importlib, json, sys
before = {*sys.modules}
for name in sys.argv[1:]:
    importlib.import_module(f"labsched.{name}")
print(json.dumps(sorted({*sys.modules} - before)))
"""


def test_it_needs_nothing_but_python() -> None:
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py") if path.stem != "__init__"]
    names = {".".join(path.parts) for path in paths} - {FITTED}
    assert {"scheduler", "log.steplog", "vllm.recorder"} <= names
    argv = [sys.executable, "-I", "-c", IMPORT, *names]
    found = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    assert {module.partition(".")[0] for module in found} <= {"labsched", *sys.stdlib_module_names}
