"""The author's gate for every exercise on a real server: starters fail, solutions pass, wrong answers fail if due."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import page_files
import pytest
from gating import due
from layer import require_vllm
from machinery import ROOT, copy_of_the_checkout
from prometheus_here import prometheus, promtool

from benchmarks import gate
from labctl.learn import server
from labctl.learn.exercise import Exercise, find_all, find_exercise
from labctl.listener import Silent
from labctl.manifest.catalog import load
from labctl.stack.session import Session
from labctl.workspace import Workspace

__all__ = ["prometheus", "promtool"]
EXAMPLE = "example-exercise"
EXERCISES = find_all(Workspace(ROOT, ROOT / ".cache"), load(Workspace(ROOT, ROOT / ".cache")))
# The exercise server is meant to outlive the check that started it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def by_server() -> list[object]:
    """Every exercise, those of one stack together and to one worker, so that servers are kept or restarted once."""
    ordered = sorted(EXERCISES, key=lambda e: (e.manifest.stack, str(e.manifest.settings), e.id))
    return [pytest.param(e.id, id=e.id, marks=pytest.mark.xdist_group(f"gate-{e.manifest.stack}")) for e in ordered]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A checkout of the gate's own, with the page's exercise; its server stays up from one exercise to the next."""
    root = copy_of_the_checkout(tmp_path_factory.mktemp("gate") / "checkout")
    page_files.put_into(root, EXAMPLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABS_ROOT", str(root))
        session = Session.open(Silent())
        try:
            yield session
        finally:
            server.stop(session)
            assert session.find(server.STACK) is None


def problems(session: Session, exercise: Exercise) -> list[str]:
    """What was not judged as foreseen. Each wrong answer has a seed of its own: it cannot know an earlier attempt's."""
    said = []
    for number, attempt in enumerate(gate.attempts(exercise), 4):  # the solution's are 1 to 3
        is_due = due(f"{exercise.id} {attempt.name}")
        if is_due or attempt.name in ("starter", "solution"):
            seeds = [number] if attempt.says else [1, 2, 3] if is_due else [1]
            said.append(gate.problem(attempt, gate.judged(session, exercise, attempt, "local", seeds)))
    return [problem for problem in said if problem]


@pytest.mark.parametrize("id", by_server())
def test_the_starter_fails_as_foreseen_the_solution_passes_and_wrong_answers_that_are_due_fail(
    session: Session, cache: Path, id: str, request: pytest.FixtureRequest
) -> None:
    exercise = find_exercise(find_all(session.workspace, session.catalog), id)
    if exercise.manifest.settings.get("engine") == "vllm":
        require_vllm(cache)
    if id == "07d":
        request.getfixturevalue("promtool")
    assert problems(session, exercise) == []


@pytest.mark.xdist_group("gate-iterative")
def test_the_pages_exercise_passes_the_gate_as_it_stands_there(session: Session) -> None:
    assert problems(session, find_exercise(find_all(session.workspace, session.catalog), "02x")) == []
