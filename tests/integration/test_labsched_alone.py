"""The scheduler's package as pip installs it, in a Python that has NumPy and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkout import ROOT
from recordings import recorded, request, vllm_settings, written_by_vllm

from labsched.step import Step


def linear(row: Step) -> float:
    """A step's time: 8 ms, and 0.03 ms for each token."""
    return 8e-3 + 3e-5 * sum(row.tokens)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip installed a copy of the checkout's package."""
    copy, target = tmp_path_factory.mktemp("checkout"), tmp_path_factory.mktemp("installed")
    for part in ("packaging/labsched", "src/labsched"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--target", str(target)]
    subprocess.run([*pip, str(copy / "packaging" / "labsched")], check=True, timeout=300)
    for folder in Path(np.__file__).parents[1].glob("numpy*"):  # its libraries lie beside it
        (target / folder.name).symlink_to(folder)
    return target


def python(installed: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python without the packages of the labs."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, "-S", *words], check=False, env=env, cwd=installed, capture_output=True, text=True, timeout=300
    )


def test_the_readmes_example_runs_as_it_is_printed(installed: Path) -> None:
    done = python(installed, "-m", "doctest", str(ROOT / "packaging" / "labsched" / "README.md"))
    assert (done.returncode, done.stdout) == (0, "")


def test_it_explains_a_recording_of_vllm(installed: Path, tmp_path: Path) -> None:
    written_by_vllm(tmp_path, recorded([request(f"r{n}", 0.0, 40, 20) for n in range(40)], vllm_settings(), linear))
    shown = python(installed, "-m", "labsched", "explain", str(tmp_path))
    assert (shown.returncode, shown.stderr) == (0, "")
    document = json.loads(python(installed, "-m", "labsched", "explain", str(tmp_path), "--json").stdout)
    assert document["requests"] == 40
    assert all(sentence in shown.stdout for sentence in document["sentences"])
    assert f"| {document['TTFT']['largest']['part']} " in shown.stdout


def test_what_it_cannot_read_is_an_error_and_no_traceback(installed: Path, tmp_path: Path) -> None:
    done = python(installed, "-m", "labsched", "explain", str(tmp_path))
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
