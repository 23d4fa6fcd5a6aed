"""How long a learner waits for ``labctl exercise check``: the first, with the server to be brought up, and the next."""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from typing import Any

from labctl.learn import server
from labctl.learn.exercise import Exercise, find_all
from labctl.learn.gate import Attempt, judged
from labctl.listener import Silent
from labctl.orchestrator.session import Session
from labctl.tables import markdown, table

COLD_S, WARM_S = 30, 15  # at most
HEADER = ["exercise", "cold, s", "solution, s", "starter, s"]


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--exercises", default="", metavar="01,02a", help="checks: only these labs and exercises")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """For each exercise: its solution with no server there, then again, and the starter; two seeds, as a learner has.

    The learner's folders of this checkout are put aside meanwhile.
    """
    session = Session.open(Silent())
    mine = session.workspace.root / "exercises"
    aside = mine.with_name(".exercises-aside")
    if mine.exists():
        mine.rename(aside)
    try:
        chosen = [e for e in find_all(session.workspace, session.catalog)
                  if any(e.id.startswith(word.strip()) for word in asked.exercises.split(","))]  # fmt: skip
        found = {e.id: _measured(session, e, asked.rounds) for e in chosen}
    finally:
        server.stop(session)
        shutil.rmtree(mine, ignore_errors=True)
        if aside.exists():
            aside.rename(mine)
    rows = [[id, f"{one['cold']:.1f}", f"{one['solution']:.1f}", f"{one['starter']:.1f}"] for id, one in found.items()]
    print(table(rows, HEADER, right=range(1, 4)), "\n")
    print(markdown(rows, HEADER))
    print(f"\nat most {COLD_S} s cold and {WARM_S} s warm were asked for")
    return found


def _measured(session: Session, exercise: Exercise, rounds: int) -> dict[str, float]:
    solution = Attempt("solution", exercise.folder / "solution", "")
    starter = Attempt("starter", exercise.folder / "starter", exercise.manifest.says)
    server.stop(session)
    cold = _seconds(session, exercise, solution)
    warm = [(_seconds(session, exercise, solution), _seconds(session, exercise, starter)) for _ in range(rounds)]
    print(f"{exercise.id}: {cold:.1f} s, then {warm}", flush=True)
    return {
        "cold": cold,
        "solution": statistics.median(one for one, _ in warm),
        "starter": statistics.median(one for _, one in warm),
    }


def _seconds(session: Session, exercise: Exercise, attempt: Attempt) -> float:
    began = time.monotonic()
    outcome = judged(session, exercise, attempt, "local", ())
    took = time.monotonic() - began
    if outcome.passed != (not attempt.says):
        raise RuntimeError(f"{exercise.id}, {attempt.name}: {outcome.sentence}")
    return took
