"""A learner's loop on a real server: edit, reload, undo; and the author's gate, exercise by exercise."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from machinery import ROOT, copy_of_the_checkout, labctl

from labctl.learn import gate, server
from labctl.learn.exercise import Exercise, find_all
from labctl.listener import Silent
from labctl.manifest.catalog import load
from labctl.orchestrator.session import Session
from labctl.workspace import Workspace

pytestmark = pytest.mark.xdist_group("learning")
EXERCISES = find_all(Workspace(ROOT, ROOT / ".cache"), load(Workspace(ROOT, ROOT / ".cache")))
EVERY_ONE = "LABS_GATE"  # set: every exercise goes through the gate, else one of them
GATED = [e for e in EXERCISES if os.environ.get(EVERY_ONE) or e.id == "02a"]
MODEL = "model_repos/iterative/iterative-gpt2/1/model.py"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of the learner's own, under git, as a clone is."""
    root = copy_of_the_checkout(tmp_path_factory.mktemp("learner") / "checkout")
    for command in (
        ["init", "-q"],
        ["add", "model_repos"],
        ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "s"],
    ):
        subprocess.run(["git", *command], cwd=root, check=True)
    try:
        yield root
    finally:
        labctl("down", "--all", root=root, check=False)


@pytest.fixture
def session(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setenv("LABS_ROOT", str(desk))
    return Session.open(Silent())


# The exercise server is meant to outlive the check that started it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("exercise", GATED, ids=lambda e: e.id)
def test_the_starter_and_wrong_answers_fail_as_foreseen_and_the_solution_passes(
    session: Session, exercise: Exercise
) -> None:
    exercise = next(e for e in find_all(session.workspace, session.catalog) if e.id == exercise.id)
    problems = []
    for attempt in gate.attempts(exercise):
        for seed in (1,) if attempt.says else (1, 2, 3):
            problems.append(gate.problem(attempt, gate.judged(session, exercise, attempt, "local", [seed])))
    assert [problem for problem in problems if problem] == []
    assert server.stop(session)
    assert session.find(server.STACK) is None


@pytest.fixture(scope="module")
def up(desk: Path) -> Path:
    labctl("up", "iterative", "--runtime", "local", "--ports", "auto", root=desk)
    return desk


def ask(root: Path) -> str:
    return str(labctl("infer", "iterative", "-m", "iterative-gpt2", "-p", "The fox", "-o", "4", root=root, check=False))


def test_an_edit_is_told_reloaded_and_undone(up: Path) -> None:
    model = up / MODEL
    shipped = model.read_text()
    model.write_text(
        shipped.replace("def execute(self, requests):", "def execute(self, requests):\n        print('EDITED')")
    )
    again = labctl("up", "iterative", "--runtime", "local", root=up)
    assert f"{MODEL} was edited" in again.stderr and "labctl reload iterative" in again.stderr
    pid = json.loads(labctl("status", "iterative", "--json", root=up).stdout)["endpoints"]
    assert labctl("reload", "iterative", root=up).stdout.strip() == "loaded: iterative-gpt2"
    answer = ask(up)
    assert "returncode=0" in answer
    assert "EDITED" in labctl("logs", "iterative", root=up).stdout
    assert json.loads(labctl("status", "iterative", "--json", root=up).stdout)["endpoints"] == pid
    undone = labctl("undo", "iterative", root=up).stdout
    assert model.read_text() == shipped and "yours: model.py.yours-" in undone
    assert labctl("reload", "iterative", root=up).stdout.strip() == "loaded: iterative-gpt2"
    assert "nothing was edited" in labctl("reload", "iterative", root=up).stdout


def test_a_syntax_error_is_told_in_the_edited_file_and_the_old_model_serves_on(up: Path) -> None:
    model = up / MODEL
    shipped = model.read_text()
    model.write_text(shipped + "\ndef broken(:\n")
    try:
        refused = labctl("reload", "iterative", root=up, check=False)
        assert refused.returncode == 1
        assert "SyntaxError" in refused.stderr and f"line {len(shipped.splitlines()) + 2}" in refused.stderr
        assert "labctl undo iterative iterative-gpt2" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert "returncode=0" in ask(up)
    finally:
        model.write_text(shipped)
