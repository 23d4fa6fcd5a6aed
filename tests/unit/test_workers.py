"""Tests of one group share a worker, and so a server; without a word they would not (pytest 9.2 with xdist 3.8)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = """
import os, pytest
@pytest.mark.parametrize("n", range(6))
@pytest.mark.xdist_group("together")
def test_one(n): open("workers", "a").write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
"""


def test_tests_of_one_group_run_on_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", "2", "--dist", "loadgroup"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # other plugins import for longer than it all takes
    subprocess.run(command, cwd=tmp_path, env=alone, capture_output=True, check=True)
    assert len(set((tmp_path / "workers").read_text().split())) == 1
