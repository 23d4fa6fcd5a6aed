"""A bundle, from the machine that makes it to a lab's verdict on one that has no network at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from checkout import ROOT
from machinery import labctl

pytestmark = pytest.mark.night

PROBE = ["unshare", "--net", "true"]
# Loopback alone: whoever asks for anything beyond this machine fails at once.
OFFLINE = """set -e
ip link set lo up
./install
make lab-iterative ARGS="--quick --ports auto --runtime local"
labctl=.venv/bin/labctl
$labctl exercise start 02a
cp labs/02-*/exercises/02a-*/solution/* exercises/02a/
$labctl exercise check 02a --runtime local
echo "# mine" >>model_repos/iterative/iterative-gpt2/1/model.py
$labctl up iterative --ports auto --runtime local
$labctl undo iterative
cmp model_repos/iterative/iterative-gpt2/1/model.py .bundle/shipped/model_repos/iterative/iterative-gpt2/1/model.py
$labctl down --all
"""


def reason_to_skip() -> str:
    """A second installation of all packages: three minutes of processor time, too much for every run of CI."""
    if not os.environ.get("LABS_TEST_BUNDLE"):
        return "takes five minutes and 4 GB: set LABS_TEST_BUNDLE=1"
    try:
        done = subprocess.run(PROBE, capture_output=True, check=False)
    except FileNotFoundError:
        return "this machine has no unshare"
    return "" if done.returncode == 0 else "a network namespace needs root"


@pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())
def test_fault_31_a_bundle_runs_a_lab_where_there_is_only_loopback(tmp_path: Path) -> None:
    bundle, there = tmp_path / "bundle.tar", tmp_path / "there"
    made = labctl("bundle", "create", str(bundle), "--labs", "02", root=ROOT, timeout=900)
    assert "about" in made.stderr and "GB" in made.stderr
    there.mkdir()
    subprocess.run(["tar", "-xf", str(bundle)], cwd=there, check=True)
    bundle.unlink()
    aside = {"PIP_FIND_LINKS", "LABS_ROOT"}
    env = {key: value for key, value in os.environ.items() if key not in aside} | {
        "LABS_CACHE": str(tmp_path / "cache")
    }
    command = ["unshare", "--net", "sh", "-c", OFFLINE]
    done = subprocess.run(command, cwd=there, env=env, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    assert list(there.glob("results/02-*/*/result.json"))
