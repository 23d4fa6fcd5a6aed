"""Many seeds of every exercise: its solution must pass with each, and each wrong answer fail with its own sentence."""

from __future__ import annotations

import argparse
import shutil
import time
from typing import Any

from labctl.learn import gate, server
from labctl.learn.exercise import Exercise, find_all
from labctl.listener import Silent
from labctl.orchestrator.session import Session
from labctl.tables import markdown, table

HEADER = ["exercise", "answer", "seeds", "as foreseen", "seconds each"]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", help="exercises: their ids, with commas between (01a,02c)")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Count, for each answer of each exercise, how many of the seeds 1 to ``--count`` (200) it is judged rightly with.

    Every exercise is measured, also those that do not call themselves a matter of chance.
    The learner's folders of this checkout are put aside meanwhile.
    """
    session = Session.open(Silent())
    wanted = set((options.only or "").split(",")) - {""}
    exercises = [e for e in find_all(session.workspace, session.catalog) if not wanted or e.id in wanted]
    mine = session.workspace.root / "exercises"
    aside = mine.with_name(".exercises-aside")
    if mine.exists():
        mine.rename(aside)
    rows: list[list[str]] = []
    found: dict[str, Any] = {}
    try:
        for exercise in exercises:
            for attempt in gate.attempts(exercise):
                one = _repeated(session, exercise, attempt, options.count or 200)
                found[f"{exercise.id} {attempt.name}"] = one
                good = f"{one['foreseen']} of {one['seeds']}"
                rows.append([exercise.id, attempt.name, f"{one['seeds']}", good, f"{one['seconds']:.1f}"])
                print(*rows[-1], *one["problems"], flush=True)
    finally:
        server.stop(session)
        shutil.rmtree(mine, ignore_errors=True)
        if aside.exists():
            aside.rename(mine)
    print(table(rows, HEADER, right=(2, 4)), "\n")
    print(markdown(rows, HEADER))
    return found


def _repeated(session: Session, exercise: Exercise, attempt: gate.Attempt, count: int) -> dict[str, Any]:
    began = time.monotonic()
    told = [
        (seed, gate.problem(attempt, gate.judged(session, exercise, attempt, "local", [seed])))
        for seed in range(1, count + 1)
    ]
    problems = [f"seed {seed}: {problem}" for seed, problem in told if problem]
    return {
        "seeds": count,
        "foreseen": count - len(problems),
        "problems": problems,
        "seconds": (time.monotonic() - began) / count,
    }
