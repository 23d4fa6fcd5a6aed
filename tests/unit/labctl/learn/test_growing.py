"""my/scheduler.py: one scheduler of the learner's own, which grows from exercise to exercise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from exercise_cases import EXERCISES

from labctl.learn import desk, growing, judge
from labctl.learn.exercise import Exercise, find_exercise
from labctl.learn.outcome import Check
from labctl.listener import Listener
from labctl.workspace import Workspace
from labsched.own import scheduler_beside
from labsched.scheduler import Scheduler

GROWING = [exercise for exercise in EXERCISES if exercise.manifest.grows]
JOIN, ROOM, SHARE, FAIR = (find_exercise(EXERCISES, id) for id in ("05a", "05b", "06a", "06b"))


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, tmp_path / "cache")


def mine(workspace: Workspace) -> Path:
    return workspace.root / growing.OWN


def begin(workspace: Workspace, *exercises: Exercise) -> str:
    for exercise in exercises:
        desk.lay_out_exercise(exercise, workspace)
    return mine(workspace).read_text()


def solve(workspace: Workspace, exercise: Exercise) -> None:
    text = growing.add_parts(mine(workspace).read_text(), exercise.texts("solution")[growing.FILE], again=True)
    mine(workspace).write_text(text)


def judged(workspace: Workspace, exercise: Exercise, passed: Sequence[str]) -> str:
    files = desk.files(exercise, workspace)
    without = desk.left_out(exercise, mine(workspace).read_text(), EXERCISES, passed)
    return desk.copy_to_judge(files, without, workspace.root / "judged")[growing.FILE].read_text()


def answers(folder: Path, name: str) -> bool:
    """Whether the file's scheduler answers a question in its own way."""
    return any(
        name in vars(kind) for kind in scheduler_beside(folder).__mro__[1:] if kind.__module__ == "own_scheduler"
    )


def test_the_five_exercises_of_the_scheduler_add_different_parts() -> None:
    assert [exercise.id for exercise in GROWING] == ["05a", "05b", "06a", "06c", "06b"]
    parts = [part for exercise in GROWING for part in exercise.parts]
    assert len(parts) == len({*parts})


def test_an_exercise_adds_its_parts_and_leaves_the_others_as_they_were_written(workspace: Workspace) -> None:
    before = begin(workspace, JOIN)
    solve(workspace, JOIN)
    written = mine(workspace).read_text()
    after = begin(workspace, ROOM, SHARE, FAIR)
    assert written != before
    assert {*written.splitlines()} <= {*after.splitlines()}
    assert growing.parts(after).keys() == {part for each in (JOIN, ROOM, SHARE, FAIR) for part in each.parts}


def test_an_exercise_that_is_begun_again_changes_nothing(workspace: Workspace) -> None:
    begin(workspace, JOIN, ROOM)
    solve(workspace, ROOM)
    assert begin(workspace, JOIN, ROOM) == mine(workspace).read_text()


def test_reset_puts_only_its_own_parts_back_and_keeps_the_file_as_it_was(workspace: Workspace) -> None:
    begin(workspace, JOIN)
    solve(workspace, JOIN)
    solved = begin(workspace, ROOM)
    solve(workspace, ROOM)
    written = mine(workspace).read_text()
    kept = desk.reset(ROOM, workspace)
    assert kept and (kept / growing.FILE).read_text() == written
    assert mine(workspace).read_text() == solved


def test_a_part_whose_exercise_has_not_passed_is_the_labs_own_in_a_check_of_another_one(workspace: Workspace) -> None:
    begin(workspace, JOIN, ROOM)
    (workspace.root / "judged").mkdir()
    judged(workspace, ROOM, [])
    assert not answers(workspace.root / "judged", "places")
    assert answers(workspace.root / "judged", "reserve")
    judged(workspace, ROOM, ["05a"])
    assert answers(workspace.root / "judged", "places")


@pytest.mark.parametrize(("lost", "says"), [("", ""), ("reserve", "has no Scheduler.reserve")])
def test_a_check_names_the_parts_that_it_takes_from_the_labs_and_the_part_that_is_not_there(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, lost: str, says: str
) -> None:
    begin(workspace, JOIN, ROOM)
    mine(workspace).write_text(
        mine(workspace).read_text().replace(f"def {lost}(", "def other(") if lost else begin(workspace)
    )
    monkeypatch.setattr(judge, "_judge", lambda *_: [Check("answers", "8", "8", True)])
    monkeypatch.setattr(judge, "find_exercises", lambda *_: EXERCISES)
    session: Any = SimpleNamespace(workspace=workspace, listener=Listener(), catalog=None)
    outcome = judge.check_exercise(session, ROOM, "local", [7])
    assert outcome.passed != bool(lost) and says in outcome.sentence
    assert lost or "Scheduler.places (05a)" in outcome.rows()[0]


def test_lines_keep_their_numbers_where_a_part_is_left_out(workspace: Workspace) -> None:
    text = begin(workspace, JOIN, ROOM, FAIR)
    cut = growing.without(text, [*JOIN.parts, *FAIR.parts])
    begins = [growing.parts(one)["Scheduler.reserve"] for one in (text, cut)]
    assert begins[0] == begins[1]
    assert len(cut.splitlines()) == len(text.splitlines())


@pytest.mark.parametrize("exercise", GROWING, ids=lambda exercise: exercise.id)
def test_each_starter_and_solution_is_a_scheduler_by_itself(exercise: Exercise, tmp_path: Path) -> None:
    for answer in ("starter", "solution"):
        (tmp_path / growing.FILE).write_text(exercise.texts(answer)[growing.FILE])
        assert issubclass(scheduler_beside(tmp_path), Scheduler)
        assert [*growing.parts(exercise.texts(answer)[growing.FILE])] == exercise.parts


def test_a_file_that_python_cannot_read_stays_as_it_is(workspace: Workspace) -> None:
    begin(workspace, JOIN)
    mine(workspace).write_text("class Scheduler(:\n")
    assert begin(workspace, ROOM) == "class Scheduler(:\n"


def test_a_file_without_the_class_gets_it_with_the_next_part(workspace: Workspace) -> None:
    mine(workspace).parent.mkdir()
    mine(workspace).write_text("MINE = 1\n")
    assert begin(workspace, JOIN).startswith("MINE = 1\n")
    assert growing.parts(mine(workspace).read_text()).keys() == {*JOIN.parts}
