"""A learner's progress: what passed stays, and no damage or second command loses it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from exercise_cases import begin_in

from labctl.learn.progress import PASSED, STARTED, Progress
from labctl.workspace import Workspace


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
    when = progress.of("02a").passed
    progress.record_check("02a", passed=False)
    progress.start("02a")
    assert (progress.of("02a").state, progress.of("02a").checks, progress.of("02a").passed) == (PASSED, 2, when)


@pytest.mark.parametrize("text", ['{"02a": [1', "[1, 2]", "null", "\x00"])
def test_damaged_progress_counts_as_none_and_is_kept_aside(workspace: Workspace, text: str) -> None:
    progress = Progress(workspace)
    progress.start("02a")
    path = workspace.state / "exercises.json"
    path.write_text(text)
    assert progress.entries() == {} and progress.current == ""
    progress.start("02b")
    assert progress.of("02b").state == STARTED
    [aside] = workspace.state.glob("exercises.json.damaged-*")
    assert aside.read_text() == text


def test_the_next_exercise_is_the_current_one_while_it_was_only_opened(workspace: Workspace) -> None:
    ids, progress = ["01a", "02a", "02b"], Progress(workspace)
    assert progress.next_open(ids) == "01a"
    progress.start("02a")
    assert progress.next_open(ids) == "02a"
    progress.record_check("02a", passed=False)
    assert progress.next_open(ids) == "02b"


def test_two_commands_at_once_lose_no_progress(workspace: Workspace) -> None:
    ids = [f"{n:02}a" for n in range(24)]
    threads = [threading.Thread(target=Progress(workspace).record_check, args=(id, True)) for id in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Progress(workspace).entries()) == ids
