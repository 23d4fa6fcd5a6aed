"""The lessons that are notebooks: what is committed is what the lessons say, and every cell runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from layer import require_vllm
from machinery import ROOT, copy_of_the_checkout, taken_down
from recordings import made_up_recording, written

PACKAGES = ROOT / ".venv" / "teach" / "bin"  # make notebooks
NOTEBOOKS = sorted(ROOT.glob("labs/*/notebook.ipynb"))
COMMAND = re.compile(r"^( *)!labctl .*$", re.M)
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


def test_each_notebook_is_what_its_lesson_says(python: Path) -> None:
    done = subprocess.run(
        [python, "scripts/notebooks.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_public_address_becomes_a_badge_and_what_the_first_cell_clones(python: Path) -> None:
    say = "from notebooks import *; print(notebook(*ROOT.glob('labs/02-*'), 'https://github.com/owner/labs.git'))"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    made = subprocess.run([python, "-c", say], env=env, capture_output=True, text=True, check=True).stdout
    assert (
        "https://colab.research.google.com/github/owner/labs/blob/main/labs/02-iterative-scheduling/notebook.ipynb"
        in made
    )
    assert 'REPOSITORY = \\"https://github.com/owner/labs.git\\"' in made


def solved(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The notebook with solutions for starters, in which every command must succeed and every verdict be met."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            text = cell["source"]
            if found := WRITES.match(text):
                (exercise,) = folder.glob(f"exercises/{found[1]}-*")
                text = found[0] + (exercise / "solution" / found[2]).read_text(encoding="utf-8")
            text = text.replace("--quick", "--quick --strict", 1)
            cell["source"] = COMMAND.sub(r"\g<0>\n\1assert _exit_code == 0", text)
    return notebook


@pytest.mark.night
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.parent.name)
def test_every_cell_runs_and_every_exercise_passes(path: Path, python: Path, cache: Path, tmp_path: Path) -> None:
    """In a folder of its own, by a Python without the labs' packages, as an editor of notebooks would do it."""
    if "08" in path.parent.name:
        require_vllm(cache)
    root = copy_of_the_checkout(tmp_path / "labs")
    copy = root / path.relative_to(ROOT)
    copy.write_text(json.dumps(solved(json.loads(path.read_text(encoding="utf-8")), path.parent)), encoding="utf-8")
    recording = written(tmp_path, made_up_recording()).parent
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LABS_RECORD": str(recording)}
    command = [
        "-m",
        "nbconvert",
        "--execute",
        "--to",
        "notebook",
        "--inplace",
        f"--ExecutePreprocessor.timeout={SECONDS}",
    ]
    try:
        done = subprocess.run(
            [python, *command, copy], env=env, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    finally:
        taken_down(root)
    assert done.returncode == 0, done.stderr[-4000:]
    outputs = [output for cell in json.loads(copy.read_text())["cells"] for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", ())]
    assert kinds.count("image/png") >= 2 and "text/html" in kinds, "what the run drew, its timeline, and the recording"
