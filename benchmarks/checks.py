"""How long a learner waits for ``labctl exercise check``: the first, with the server to be brought up, and the next."""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from benchmarks import answers
from labctl.learn import server
from labctl.learn.attempts import Attempt, find_attempt
from labctl.learn.exercise import Exercise
from labctl.learn.verify import judge_attempt
from labctl.stack.session import Session
from labkit.tables import format_table
from labsched.markdown import markdown

COLD_S, WARM_S = 30, 15  # at most
HEADER = ["exercise", "the first, s", "solution, s", "starter, s"]
PAGE = 'docs/develop/measurements.md, under "How long the checks take"'


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """For each exercise its solution with no server there, then again, and the starter; two seeds, as for a learner."""
    with answers.desk(asked.only) as (session, exercises):
        times = {e.id: _measured(session, e, asked.rounds) for e in exercises}
    rows = [[id, f"{one['cold']:.1f}", f"{one['solution']:.1f}", f"{one['starter']:.1f}"] for id, one in times.items()]
    print(format_table(rows, HEADER, right=range(1, 4)), "\n")
    print(f"for {PAGE}:\n")
    print(markdown(rows, HEADER))
    slow = [
        row[0]
        for row, one in zip(rows, times.values(), strict=True)
        if one["cold"] > COLD_S or max(one["solution"], one["starter"]) > WARM_S
    ]
    within = f"not so: {', '.join(slow)}" if slow else "all are"
    print(f"\nat most {COLD_S} s for the first and {WARM_S} s for the next were asked for: {within}")
    return times


def _measured(session: Session, exercise: Exercise, rounds: int) -> dict[str, float]:
    solution, starter = find_attempt(exercise, "solution"), find_attempt(exercise, "starter")
    server.stop_exercise_server(session)
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
    outcome = judge_attempt(session, exercise, attempt, "local", ())
    took = time.monotonic() - began
    if outcome.passed != (not attempt.says):
        raise RuntimeError(f"{exercise.id}, {attempt.name}: {outcome.sentence}")
    return took
