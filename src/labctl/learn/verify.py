"""Prove an exercise: its starter and wrong answers fail with the foreseen sentence, and its solution passes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.catalog import load_catalog
from labctl.learn import growing, judge, server
from labctl.learn.attempts import SOLUTION, Attempt, exercise_attempts
from labctl.learn.exercise import Exercise, find_exercises
from labctl.learn.outcome import Missing
from labctl.listener import Silent
from labctl.options import Options
from labctl.plan import make_plan
from labctl.stack import shipped
from labctl.stack.session import Session
from labctl.workspace import Workspace
from labkit.disk import atomic_write, replace_dir
from labkit.errors import LabError

# Folders of a checkout in which nothing is to be served.
STATE = {"exercises", growing.FOLDER, "results", "site", "build", "dist"}


@dataclass(frozen=True)
class Proof:
    """How one answer was judged. ``problem`` is None where it was as foreseen."""

    exercise: str
    answer: str
    problem: str | None
    seconds: float
    left_out: bool = False  # this machine lacks what its server needs, which ``problem`` names


def judge_attempt(
    session: Session, exercise: Exercise, attempt: Attempt, runtime: str | None, seeds: Sequence[int]
) -> judge.Outcome:
    """What the check says of an attempt. Overwrites the learner's folder: use it in a copy of the checkout."""
    with replace_dir(exercise.yours(session.workspace)) as fresh:
        attempt.write(fresh)
        if exercise.manifest.grows:
            atomic_write(session.workspace.root / growing.OWN, (fresh / growing.FILE).read_text(encoding="utf-8"))
    return judge.check_exercise(session, exercise, runtime, seeds)


def problem_with(attempt: Attempt, outcome: judge.Outcome) -> str | None:
    """Say what is wrong with the exercise; None if the attempt was judged as foreseen."""
    if not attempt.says:
        return None if outcome.passed else f"{attempt.name} fails: {outcome.sentence}"
    if outcome.passed:
        return f"{attempt.name} passes"
    return None if outcome.sentence == attempt.says else f"{attempt.name} says: {outcome.sentence}"


def verify(
    session: Session, wanted: Collection[str], whole: Collection[str], runtime: str | None, seeds: int
) -> Iterator[Proof]:
    """Judge the answers of the exercises with these ids, in a copy of the checkout: a person's work stays as it is.

    ``whole``: ids of those whose starter and wrong answers are judged too; of the others it is the solution alone.
    ``seeds``: of each solution, from 1. A wrong answer has as many of its own, so that none can know an earlier one's;
    each of them must refute it.
    Exercises of one stack follow each other, so that its server is brought up once.
    """
    with _copy(session) as copy:
        exercises = [e for e in find_exercises(copy.workspace, copy.catalog) if e.id in wanted]
        for exercise in sorted(exercises, key=lambda e: (e.manifest.stack, str(e.manifest.settings), e.id)):
            try:
                server.refuse_runtime(copy, exercise, runtime)
            except LabError as error:
                yield Proof(exercise.id, "", str(error.what), 0, left_out=True)
                continue
            for number, attempt in enumerate(exercise_attempts(exercise), 1):
                if exercise.id in whole or attempt.name == SOLUTION:
                    first = 1 + (number * seeds if attempt.says else 0)
                    yield _proof(copy, exercise, attempt, runtime, range(first, first + seeds))


def _proof(session: Session, exercise: Exercise, attempt: Attempt, runtime: str | None, seeds: Sequence[int]) -> Proof:
    began = time.monotonic()
    problem: str | None = None
    try:
        if not attempt.says:
            problem = problem_with(attempt, judge_attempt(session, exercise, attempt, runtime, seeds))
        else:
            for seed in seeds:  # each of them must refute it
                if problem := problem_with(attempt, judge_attempt(session, exercise, attempt, runtime, [seed])):
                    problem += f" (seed {seed})"
                    break
    except Missing as error:
        return Proof(exercise.id, attempt.name, f"{error.what}: {error.why}", 0.0, left_out=True)
    except LabError as error:
        problem = f"{attempt.name} was not judged: {': '.join(filter(None, (error.what, error.why)))}"
    return Proof(exercise.id, attempt.name, problem, time.monotonic() - began)


@contextlib.contextmanager
def _copy(session: Session) -> Iterator[Session]:
    """A session in a copy of the checkout as it is now; its exercise server goes with it."""
    with tempfile.TemporaryDirectory(prefix="labs-verify-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # the server in a container may run as another user
        root = Path(folder) / "checkout"
        source = session.workspace.root
        hidden = {path.name for path in source.glob(".*") if path.name != ".dockerignore"}

        def ignore(place: str, names: list[str]) -> set[str]:
            return {"__pycache__", *STATE, *hidden} if Path(place) == source else {"__pycache__"}

        shutil.copytree(source, root, symlinks=True, ignore=ignore)
        workspace = Workspace(root, session.workspace.cache)
        copy = Session(workspace, load_catalog(workspace), Silent())
        try:
            yield copy
        finally:
            server.stop_exercise_server(copy)


def changed_exercises(exercises: Sequence[Exercise], workspace: Workspace, since: str) -> set[str]:
    """The ids of the exercises that a commit, or what is not committed yet, has touched since it left ``since``.

    It touches one by its own folder, by another file of its lab or of the lab whose stack it runs on, and by the
    templates of that stack. Raises LabError: git cannot say.
    """
    parted = _git(workspace, "merge-base", "HEAD", since).strip()
    tracked = _git(workspace, "diff", "--name-only", "--relative", "-z", parted)
    untracked = _git(workspace, "ls-files", "--others", "--exclude-standard", "-z")
    paths = [workspace.root / name for name in f"{tracked}{untracked}".split("\0") if name]
    return {exercise.id for exercise in exercises if any(_touches(path, exercise, workspace) for path in paths)}


def _touches(path: Path, exercise: Exercise, workspace: Workspace) -> bool:
    if path.is_relative_to(exercise.folder):
        return True
    labs = [workspace.labs / lab.folder for lab in (exercise.lab, exercise.home)]
    if any(path.is_relative_to(lab) and not path.is_relative_to(lab / "exercises") for lab in labs):
        return path.suffix != ".md"
    options = Options(set=exercise.manifest.settings)
    templates = make_plan(workspace, exercise.home, exercise.manifest.stack, options).request.sources
    return any(path.is_relative_to(folder) for folder in templates)


def _git(workspace: Workspace, *arguments: str) -> str:
    try:
        return shipped.run_git(workspace, *arguments)
    except LabError as error:
        raise LabError(
            "git cannot say what was changed", error.why, "labctl exercise verify --all", code="git-failed"
        ) from error
