"""The author's gate: starters and likely wrong answers must fail with the sentence foreseen, solutions must pass."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.learn import judge
from labctl.learn.exercise import Exercise
from labctl.stack.session import Session
from labctl.unfinished import replace_dir


@dataclass(frozen=True)
class Attempt:
    """One answer to an exercise: the folder it is in, and the sentence that it must fail with ("" for a pass)."""

    name: str
    folder: Path
    says: str


def attempts(exercise: Exercise) -> Iterator[Attempt]:
    """The starter, every wrong answer, and the solution."""
    yield Attempt("starter", exercise.folder / "starter", exercise.manifest.says)
    for name, says in exercise.manifest.wrong.items():
        yield Attempt(f"wrong/{name}", exercise.folder / "wrong" / name, says)
    yield Attempt("solution", exercise.folder / "solution", "")


def judged(session: Session, exercise: Exercise, attempt: Attempt, runtime: str, seeds: Sequence[int]) -> judge.Outcome:
    """What the check says of an attempt. The learner's folder of the checkout is written over: not for a person's."""
    with replace_dir(exercise.yours(session.workspace)) as fresh:
        shutil.copytree(attempt.folder, fresh, dirs_exist_ok=True)
    return judge.check(session, exercise, runtime, seeds)


def problem(attempt: Attempt, outcome: judge.Outcome) -> str:
    """What is wrong with the exercise, in words; "" if the attempt was judged as foreseen."""
    if not attempt.says:
        return "" if outcome.passed else f"{attempt.name} fails: {outcome.sentence}"
    if outcome.passed:
        return f"{attempt.name} passes"
    return "" if outcome.sentence == attempt.says else f"{attempt.name} says: {outcome.sentence}"
