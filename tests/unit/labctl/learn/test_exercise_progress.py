"""A learner's progress: what passed stays, and no damage or second command loses it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from exercise_cases import EXERCISES, begin_in

from labctl.learn.progress import PASSED, STARTED, Progress
from labctl.workspace import Workspace

CORE = [exercise.id for exercise in EXERCISES if exercise.core]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout in which exercises can be begun."""
    monkeypatch.chdir(begin_in(tmp_path, monkeypatch))
    return tmp_path


@pytest.fixture
def workspace(root: Path) -> Workspace:
    return Workspace(root, root / "cache")


def test_a_pass_stays_a_pass_when_the_learner_goes_on_to_try_things_out(workspace: Workspace) -> None:
    progress = Progress(workspace)
    progress.start("02a")
    progress.record_check("02a", passed=True)
    progress.record_check("02a", passed=False)
    progress.start("02a")
    assert (progress.of("02a").state, progress.of("02a").checks) == (PASSED, 2)


@pytest.mark.parametrize("text", ['{"02a": [1', "[1, 2]", "null", "\x00"])
def test_damaged_progress_counts_as_none_and_is_kept_aside(workspace: Workspace, text: str) -> None:
    progress = Progress(workspace)
    progress.start("02a")
    path = workspace.state / "exercises.json"
    path.write_text(text)
    assert progress.entries() == {} and progress.current is None
    progress.start("02b")
    assert progress.of("02b").state == STARTED
    [aside] = workspace.state.glob("exercises.json.damaged-*")
    assert aside.read_text() == text


def test_the_next_exercise_is_the_current_one_while_it_was_only_opened(workspace: Workspace) -> None:
    progress = Progress(workspace)
    assert to_go_on(progress) == CORE[0]
    progress.start(CORE[1])
    assert to_go_on(progress) == CORE[1]
    progress.record_check(CORE[1], passed=False)
    assert to_go_on(progress) == CORE[2]


def test_after_one_that_is_not_of_the_course_comes_the_next_of_its_lab_and_then_the_course(
    workspace: Workspace,
) -> None:
    progress, more = Progress(workspace), [exercise for exercise in EXERCISES if not exercise.core]
    of_lab = [exercise.id for exercise in more if exercise.lab.folder == more[0].lab.folder]
    following = next(each.id for each in EXERCISES[EXERCISES.index(more[len(of_lab) - 1]) + 1 :] if each.core)
    for id, then in zip(of_lab, [*of_lab[1:], following], strict=True):
        progress.start(id)
        progress.record_check(id, passed=True)
        assert to_go_on(progress) == then
    for id in CORE:
        progress.record_check(id, passed=True)
    assert to_go_on(progress) in {exercise.id for exercise in more} - {*of_lab}
    for exercise in more:
        progress.record_check(exercise.id, passed=True)
    assert progress.to_go_on(EXERCISES) is None


def to_go_on(progress: Progress) -> str:
    exercise = progress.to_go_on(EXERCISES)
    assert exercise
    return exercise.id


def test_two_commands_at_once_lose_no_progress(workspace: Workspace) -> None:
    ids = [f"{n:02}a" for n in range(24)]
    threads = [threading.Thread(target=Progress(workspace).record_check, args=(id, True)) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Progress(workspace).entries()) == ids
