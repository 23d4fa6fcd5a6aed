"""``labctl exercise verify`` without a server: what is judged with which seeds, and what is said of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from click.testing import CliRunner, Result
from exercise_cases import EXERCISES, begin_in
from hypothesis import assume, given
from hypothesis import strategies as some
from lab_errors import is_lab_error
from machinery import committed, git

from labctl.catalog import load_catalog
from labctl.cli.main import cli
from labctl.learn import judge, verify
from labctl.learn.attempts import apply_patch, exercise_attempts
from labctl.learn.exercise import Exercise, find_exercise, find_exercises
from labctl.learn.judge import Outcome
from labctl.workspace import Workspace
from labkit.errors import LabError

EXERCISE = find_exercise(EXERCISES, "02a")
ATTEMPTS = list(exercise_attempts(EXERCISE))
Judged = list[tuple[str, list[int]]]


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judged:
    """A judge that is right, in a checkout of the test's own; and what it was asked to judge."""
    seen: Judged = []

    def check(session: Any, exercise: Exercise, runtime: str | None, seeds: Sequence[int]) -> Outcome:
        folder = exercise.yours(session.workspace)
        assert not folder.is_relative_to(tmp_path), "not in the checkout of a person"
        texts = {name: (folder / name).read_text() for name in exercise.manifest.files}
        (attempt,) = [each for each in exercise_attempts(exercise) if each.files == texts]
        seen.append((f"{exercise.id} {attempt.name}", list(seeds)))
        return Outcome(exercise.id, not attempt.says, seeds, [], attempt.says or "")

    monkeypatch.setattr(judge, "check_exercise", check)
    monkeypatch.chdir(begin_in(tmp_path, monkeypatch))
    return seen


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["exercise", "verify", *arguments])


def test_the_solution_is_judged_with_all_seeds_and_a_wrong_answer_with_each_of_its_own(judged: Judged) -> None:
    assert run("02a", "--seeds", "3").exit_code == 0
    *others, (last, seeds) = judged
    assert [name for name, _ in others] == [f"02a {attempt.name}" for attempt in ATTEMPTS[:-1] for _ in range(3)]
    assert (last, seeds) == ("02a solution", [1, 2, 3])
    each = [tuple(seeds) for _, seeds in others]
    assert len(set(each)) == len(each) and not {(1,), (2,), (3,)} & set(each)


@pytest.mark.parametrize(
    ("answer", "passed", "said"),
    [
        ("solution", False, "solution fails: no"),
        ("starter", True, "starter passes"),
        ("wrong/no_reschedule", True, "wrong/no_reschedule passes"),
        ("wrong/no_reschedule", False, "wrong/no_reschedule says: no"),
    ],
)
def test_an_answer_that_is_not_judged_as_foreseen_is_named_and_fails(
    judged: Judged, monkeypatch: pytest.MonkeyPatch, answer: str, passed: bool, said: str
) -> None:
    right = judge.check_exercise

    def wrong(*arguments: Any) -> Outcome:
        outcome = right(*arguments)
        return Outcome("02a", passed, [1], [], "no") if judged[-1][0] == f"02a {answer}" else outcome

    monkeypatch.setattr(judge, "check_exercise", wrong)
    done = run("02a")
    assert done.exit_code == 1
    assert f"NO  02a  {said}" in done.output
    assert len(judged) == len(ATTEMPTS), "the others are judged all the same"


def test_a_wrong_answer_that_passes_with_one_of_its_seeds_is_named_with_the_seed(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = judge.check_exercise

    def wrong(*arguments: Any) -> Outcome:
        outcome = right(*arguments)
        lucky = judged[-1] == ("02a wrong/no_reschedule", judged[-1][1]) and judged[-1][1][0] % 3 == 2
        return Outcome("02a", True, judged[-1][1], [], "") if lucky else outcome

    monkeypatch.setattr(judge, "check_exercise", wrong)
    done = run("02a", "--seeds", "3")
    assert done.exit_code == 1
    assert re.search(r"wrong/no_reschedule passes \(seed \d*\)", " ".join(done.output.split()))


def test_a_server_that_does_not_come_up_is_a_failure(judged: Judged, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Outcome:
        raise LabError("no server", "it is broken", "mend it", code="any")

    monkeypatch.setattr(judge, "check_exercise", broken)
    assert run("02a").exit_code == 1


def test_an_exercise_whose_packages_are_missing_is_left_out_and_fails_where_asked(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(session: Any, exercise: Exercise, runtime: str) -> None:
        if exercise.id == "02b":
            raise LabError("vllm is not installed", "", "", code="layer-missing")

    monkeypatch.setattr("labctl.learn.server.refuse_runtime", refuse)
    assert run("02a", "02b").exit_code == 0
    assert run("02a", "02b", "--strict").exit_code == 1
    assert run("02b").exit_code == 1, "nothing was judged"


@pytest.mark.parametrize("words", [[], ["02a", "--all"], ["--all", "--since", "main"], ["nope"]])
def test_what_is_meant_is_named_in_one_way(judged: Judged, words: list[str]) -> None:
    assert run(*words).exit_code != 0
    assert judged == []


# -- what a commit touches ---------------------------------------------------------------------------------------------


ALL_ON_ITERATIVE = "02a 02b 02c 02d 02e 02f 06d"


@pytest.fixture(scope="module")
def of_one_commit(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, list[Exercise]]:
    """A repository with one commit, on its branch main, and the exercises that would be in it."""
    root = tmp_path_factory.mktemp("touched")
    for name in ("pyproject.toml", "labs", "model_repos"):
        (root / name).symlink_to(ROOT / name)
    workspace = Workspace(root, root.parent / "cache")
    exercises = find_exercises(workspace, load_catalog(workspace))
    for name in ("labs", "model_repos"):  # for git, folders with nothing in them
        (root / name).unlink()
    committed(root, "-b", "main")
    return workspace, list(exercises)


@pytest.mark.parametrize(
    ("path", "touched"),
    [
        (EXERCISE.folder.relative_to(ROOT) / "check.py", "02a"),
        (EXERCISE.folder.relative_to(ROOT) / "wrong" / "new.patch", "02a"),
        (Path("labs/02-iterative-scheduling/lab.py"), ALL_ON_ITERATIVE),
        (Path("labs/02-iterative-scheduling/README.md"), ""),
        (Path("model_repos/iterative/iterative-gpt2/1/model.py"), ALL_ON_ITERATIVE),
        (Path("README.md"), ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("in_a_commit", [True, False])
def test_a_commit_touches_exercises_by_their_files_their_lab_and_their_stack(
    of_one_commit: tuple[Workspace, list[Exercise]], path: Path, touched: str, in_a_commit: bool
) -> None:
    workspace, exercises = of_one_commit
    git(workspace.root, "switch", "-q", "-C", "branch", "main")
    git(workspace.root, "clean", "-q", "-d", "-f")
    file = workspace.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("new")
    if in_a_commit:
        git(workspace.root, "add", str(file))
        git(workspace.root, "commit", "-q", "-m", "two")
    assert verify.changed_exercises(exercises, workspace, "main") == set(touched.split())


def test_where_git_cannot_say_what_was_touched_the_way_out_is_named(judged: Judged) -> None:
    done = run("--since", "main")
    is_lab_error(done.exception, "git-failed")


def test_of_exercises_that_were_not_touched_the_solution_alone_is_judged(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "changed_exercises", lambda *_: {"02a"})
    assert run("--since", "main").exit_code == 0
    here = {exercise.id for exercise in EXERCISES if exercise.lab.number != "08"}  # which may lack vLLM
    assert {f"{id} solution" for id in here - {"02a"}} <= {name for name, _ in judged}
    assert all(name.startswith("02a ") or name.endswith(" solution") for name, _ in judged)
    assert len([name for name, _ in judged if name.startswith("02a ")]) == len(ATTEMPTS)


# -- a patch over the solution -----------------------------------------------------------------------------------------

TEXT = "one\ntwo\nthree\nfour\n"


@given(
    some.lists(some.sampled_from("abc"), max_size=12),
    some.lists(some.sampled_from("abc"), max_size=12),
    some.integers(0, 3),
)
def test_what_diff_writes_is_read_back_to_the_letter(before: list[str], after: list[str], context: int) -> None:
    old, new = ([f"{line}\n" for line in lines] for lines in (before, after))
    assume(old != new)
    patch = "".join(difflib.unified_diff(old, new, "solution/x.py", "wrong/x.py", n=context))
    assert apply_patch({"x.py": "".join(old), "y.py": ""}, patch) == {"x.py": "".join(new), "y.py": ""}


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ("--- a\n+++ b/x.py\n@@ -1 +1 @@\n-zero\n+1\n", "line 1 is not 'zero'"),
        ("--- a\n+++ b/other.py\n@@ -1 +1 @@\n-one\n+1\n", "there is no file 'other.py'"),
        ("--- a\n+++ b/x.py\n@@ -9 +9 @@\n-one\n+1\n", "line 9 is not 'one'"),
        ("", "it changes nothing"),
        ("--- a\n+++ b/x.py\n@@ -1 +1 @@\n one\n", "it changes nothing"),
        ("--- a\n+++ b/x.py\nnonsense\n", "this is no line of a patch"),
    ],
)
def test_a_patch_that_does_not_fit_is_refused_with_its_line(patch: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        apply_patch({"x.py": TEXT}, patch)
