"""The lessons that are notebooks: what is committed is what the lessons say, and every cell runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import vllm_traffic
from checkout import ROOT
from layer import require_vllm
from machinery import copy_of_the_checkout, taken_down

from labctl.recordings.vllm import _read_first

PACKAGES = ROOT / ".venv" / "teach" / "bin"  # make notebooks
NOTEBOOKS = sorted(ROOT.glob("labs/*/notebook.ipynb"))
COMMAND = re.compile(r"^( *)!labctl .*$", re.M)
GROWS, STARTS = "!cat my/scheduler.py", re.compile(r"exercise start (\w+)")
WRITES = re.compile(r"%%writefile exercises/(\w+)/(\S+)\n")
SECONDS = 3000


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python that has the packages of notebooks, and none of the labs'."""
    if not (PACKAGES / "jupyter").exists():
        (pytest.fail if os.environ.get("LABS_REQUIRE_SITE") else pytest.skip)(
            "no packages for notebooks: make notebooks"
        )
    return PACKAGES / "python"


@pytest.fixture(scope="module")
def path(python: Path) -> str:
    """The packages of notebooks, for the Python of the labs: both are needed to make one."""
    (folder,) = python.parents[1].glob("lib/python3*/site-packages")
    return f"{folder}{os.pathsep}{ROOT / 'scripts'}"


def test_each_notebook_is_what_its_lesson_says(path: str) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/notebooks.py", "--check"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_public_address_becomes_a_badge_and_what_the_first_cell_clones(path: str) -> None:
    say = "from notebooks import *; print(notebook(*ROOT.glob('labs/02-*'), 'https://github.com/owner/labs.git'))"
    env = {**os.environ, "PYTHONPATH": path}
    made = subprocess.run([sys.executable, "-c", say], env=env, capture_output=True, text=True, check=True).stdout
    page = "owner/labs/blob/main/labs/02-iterative-scheduling/notebook.ipynb"
    assert f"(https://colab.research.google.com/github/{page})" in made
    assert 'REPOSITORY = \\"https://github.com/owner/labs.git\\"' in made


def solved(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with solutions for starters, in which every command must succeed and every verdict be met."""
    begun = ""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = cell["source"]
            begun = started[1] if (started := STARTS.search(text)) else begun
            if text == GROWS:
                (exercise,) = folder.glob(f"exercises/{begun}-*")
                text = "%%writefile my/scheduler.py\n" + (exercise / "solution" / "scheduler.py").read_text()
            if found := WRITES.match(text):
                (exercise,) = folder.glob(f"exercises/{found[1]}-*")
                text = found[0] + (exercise / "solution" / found[2]).read_text(encoding="utf-8")
            text = text.replace("--quick", "--quick --strict", 1)
            cell["source"] = COMMAND.sub(r"\g<0>\n\1assert _exit_code == 0", text)
    return notebook


def record(folder: Path, packages: Path) -> None:
    """What a vLLM of one's own records: its scheduler decides, for a model that is not computed."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_read_first, initargs=(str(packages),)) as pool:
        pool.submit(vllm_traffic.play_recorded, {}, 1, str(folder)).result()


@pytest.mark.night
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.parent.name)
def test_every_cell_runs_and_every_exercise_passes(path: Path, python: Path, cache: Path, tmp_path: Path) -> None:
    """In a folder of its own, by a Python without the labs' packages, as an editor of notebooks would do it."""
    root = copy_of_the_checkout(tmp_path / "labs")
    copy = root / path.relative_to(ROOT)
    copy.write_text(json.dumps(solved(json.loads(path.read_text(encoding="utf-8")), path.parent)), encoding="utf-8")
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LABS_RECORD": ""}
    if path.parent.name == "08-vllm":
        record(tmp_path / "recorded", require_vllm(cache))
        env["LABS_RECORD"] = str(tmp_path / "recorded")
    command: list[str | Path] = [python, "-m", "nbconvert", "--execute", "--to", "notebook", "--inplace"]
    command += [f"--ExecutePreprocessor.timeout={SECONDS}", copy]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=False)
    finally:
        taken_down(root)
    assert done.returncode == 0, done.stderr[-4000:]
    outputs = [output for cell in json.loads(copy.read_text())["cells"] for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", ())]
    assert {"image/png", "text/html"} <= {*kinds}, "what the run drew, and its timeline"
