"""A scenario, run as its platform would: bash in an empty home; each step's scripts; check fails, then passes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery import ROOT, labctl, taken_down

pytestmark = pytest.mark.xdist_group("scenario")
# What stands for PyPI and `make setup`'s downloads: the working folder comes from this checkout, and its .venv has the
# packages of ours.
UVX = """#!/bin/bash
set -eu
[ "$1 $2" = "triton-serving-labs new" ]
"{python}" -m labctl new "$3"
cp -r "{venv}" "$3/.venv"
touch "$3/.venv/.ready"
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty home, in which a script finds the programs of the platform's image."""
    place = tmp_path_factory.mktemp("scenario")
    environment = place / "venv"
    venv.create(environment, symlinks=True)
    scheme = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", scheme))
    packages.joinpath("ours.pth").write_text(f"{sysconfig.get_path('purelib')}\n{ROOT / 'src'}\n")
    program = environment / "bin" / "labctl"
    program.write_text('#!/bin/bash\nexec "$(dirname "$0")/python" -m labctl "$@"\n')
    program.chmod(0o755)
    (place / "bin").mkdir()
    uvx = place / "bin" / "uvx"
    uvx.write_text(UVX.format(python=sys.executable, venv=environment))
    uvx.chmod(0o755)
    (place / "home").mkdir()
    yield place / "home"
    taken_down(place / "home" / "triton-serving-labs")


def script(path: Path, home: Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run a script of the scenario to its end, in the learner's home."""
    assert os.access(path, os.X_OK)
    kept = {key: os.environ[key] for key in ("LABS_CACHE", "LABS_TEST_CACHE") if key in os.environ}
    path_ = f"{home.parent / 'bin'}:/usr/local/bin:/usr/bin:/bin:/sbin:/usr/sbin"
    env = {"HOME": str(home), "PATH": path_, "LANG": "C.UTF-8", "DOCKER_HOST": "unix:///nowhere", **kept}
    return subprocess.run([path], cwd=home, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def test_killercoda_verify_fails_on_the_starter_and_passes_with_the_solution(home: Path, tmp_path: Path) -> None:
    labctl("render", "iterative", "--target", "killercoda", "--output", str(tmp_path / "k"), root=ROOT)
    details = json.loads((tmp_path / "k" / "index.json").read_text())["details"]
    named = [details["intro"], *details["steps"], details["finish"]]
    assert [one["text"] for one in named if not (tmp_path / "k" / one["text"]).is_file()] == []
    done = script(tmp_path / "k" / details["intro"]["foreground"], home)
    assert done.returncode == 0, done.stdout + done.stderr
    labs = home / "triton-serving-labs"
    assert len(details["steps"]) == len(list((ROOT / "labs").glob("02-*/exercises/*/exercise.yaml")))
    step, id = details["steps"][1], "02b"
    assert script(tmp_path / "k" / step["verify"], home).returncode == 1  # not started yet
    assert script(tmp_path / "k" / step["foreground"], home).returncode == 0
    done = script(tmp_path / "k" / step["verify"], home)
    assert done.returncode == 1 and len(done.stdout.splitlines()) == 1, done.stdout + done.stderr
    (solution,) = (labs / "labs").glob("02-*/exercises/02b-*/solution/*.py")
    shutil.copy(solution, labs / "exercises" / id)
    done = script(tmp_path / "k" / step["verify"], home)
    assert done.returncode == 0, done.stdout + done.stderr


def test_instruqt_check_tells_why_it_fails_and_passes_after_solve(home: Path, tmp_path: Path) -> None:
    labctl("render", "iterative", "--target", "instruqt", "--output", str(tmp_path / "i"), root=ROOT)
    assert script(tmp_path / "i" / "track_scripts" / "setup-workstation", home).returncode == 0
    (challenge,) = (tmp_path / "i").glob("*-02a-*")
    assert script(challenge / "setup-workstation", home).returncode == 0
    done = script(challenge / "check-workstation", home)
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL: ") and "the second request had to wait" in done.stdout
    assert script(challenge / "solve-workstation", home).returncode == 0
    done = script(challenge / "check-workstation", home)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
