"""Exercises in containers: the same checks, the same sentences, one server for those of a lab."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from machinery import container, copy_of_the_checkout, labctl
from waiting import eventually

from labctl.catalog import load_catalog
from labctl.learn.exercise import Exercise, find_exercise, find_exercises
from labctl.learn.server import STACK
from labctl.workspace import Workspace

# 4 GB: enough for the limit, and no more than a test may take if there is none. The kernel fills it in one call.
GREEDY = """    def execute(self, requests):
        import mmap

        if not hasattr(self, "kept"):
            self.kept = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
"""


@pytest.fixture
def desk(tmp_path: Path, snapshot: Path) -> Iterator[Path]:
    root = copy_of_the_checkout(tmp_path / "learner", snapshot)
    try:
        yield root
    finally:
        labctl("exercise", "stop", root=root)
        assert container(root, STACK) is None


def outcome(root: Path, exercise: Exercise, answer: str) -> dict[str, object]:
    """What the check says of that answer."""
    shutil.copytree(exercise.folder / answer, root / "exercises" / exercise.id, dirs_exist_ok=True)
    return checked(root, exercise)


def checked(root: Path, exercise: Exercise) -> dict[str, object]:
    """What the check says of the learner's files, as ``--json`` prints it; once more where the machine was too busy."""
    words = ("exercise", "check", exercise.id, "--runtime", "compose", "--seed", "1", "--json")

    def judged() -> Any:
        done = labctl(*words, root=root, check=False)
        return None if "too busy to judge" in done.stderr else done

    done = eventually(judged)
    said: dict[str, object] = json.loads(done.stdout)
    assert (done.returncode == 0) == said["passed"]
    return said


def test_the_exercises_of_a_lab_are_judged_in_one_container_and_a_greedy_model_is_stopped(desk: Path) -> None:
    workspace = Workspace(desk, desk / "cache")
    first, second = (find_exercise(find_exercises(workspace, load_catalog(workspace)), id) for id in ("02a", "02b"))
    assert outcome(desk, first, "starter")["sentence"] == first.manifest.says
    server = container(desk, STACK).id
    assert outcome(desk, first, "solution")["passed"]
    assert outcome(desk, second, "starter")["sentence"] == second.manifest.says
    assert container(desk, STACK).id == server
    greedy = desk / "exercises" / first.id / "model.py"
    shutil.copytree(first.folder / "solution", greedy.parent, dirs_exist_ok=True)
    text = greedy.read_text().replace("    def execute(self, requests):\n", GREEDY)
    assert text != greedy.read_text()
    greedy.write_text(text)
    with (first.folder / "exercise.yaml").open("a") as manifest:  # a busy machine gives memory slowly
        manifest.write("\npatience: 100\n")
    assert "took more than 3,072 MiB of memory and was stopped" in str(checked(desk, first)["sentence"])
