"""The commands of a guide, pasted: each block answers, with a number where it asks for one."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recordings import made_up_recording, written

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"(?:^(?: {4}| {7}).+\n)+", re.M)
NUMBER = re.compile(r"\d")
ANSWER = re.compile(r"^labctl (predict|plan) ")


def blocks(page: str) -> list[str]:
    """The commands of labctl in a page's indented blocks and in its tables, one each; a trailing backslash joins."""
    text = (ROOT / "docs" / "guide" / page).read_text(encoding="utf-8")
    found = [line.strip() for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    found += re.findall(r"^\|.*\| `(labctl [^`]+)`", text, re.M)
    return [line for line in found if line.startswith("labctl ")]


def answers(page: str) -> list[str]:
    """The commands that predict from a recording, without those that need a server."""
    return [line for line in blocks(page) if ANSWER.match(line) and "--run" not in line]


def run(line: str) -> str:
    argv = [sys.executable, "-m", "labctl", *shlex.split(line)[1:]]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield written(tmp_path_factory.mktemp("guide"), made_up_recording()).parent


def test_the_prediction_guide_has_blocks_to_paste() -> None:
    assert len(answers("prediction.md")) >= 4


@pytest.mark.parametrize("line", answers("prediction.md"))
def test_each_block_of_the_prediction_guide_gives_a_number(line: str, recording: Path, tmp_path: Path) -> None:
    """On a recording of made-up requests; the names that stand for something are filled in."""
    line = re.sub(r"results/05-batching-policies/TIME|\bRESULT\b", str(recording), line)
    line = line.replace("--set ...", "--set scheduling=shortest_first").replace("FILE.", f"{tmp_path}/FILE.")
    said = run(line if line.startswith("labctl plan") else f"{line} -y")
    if "--export" in line:
        assert next(iter(tmp_path.iterdir())).stat().st_size
    else:
        assert NUMBER.search(said) and "no answer" not in said
