"""Many seeds of every solution, and of wrong answers: which pass, and which do not.

An exercise's solution is judged with ``--count`` seeds; the wrong answers that its manifest names under ``chance``, in
turn, with as many together; those named by ``--wrong`` with as many of their own. Each run is
written to ``results/benchmarks/exercises.jsonl`` as it ends. A second call goes on where one was interrupted, and
leaves out what was judged already, for as long as the exercise's files are the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import answers
from labctl.learn import server, verify
from labctl.learn.attempts import SOLUTION, Attempt, exercise_attempts
from labctl.learn.exercise import Exercise
from labctl.stack.session import Session
from labkit.tables import format_table, markdown

HEADER = ["exercise", "answer", "as foreseen", "seconds each"]


@dataclass(frozen=True)
class Run:
    """One answer, judged with one seed. ``problem`` is "" if that went as foreseen; ``files`` is a hash of them."""

    exercise: str
    answer: str
    files: str
    seed: int
    problem: str
    seconds: float


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--wrong", default="", metavar="NAME,NAME", help="exercises: these wrong answers too, each with as many seeds"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Judge the answers with the seeds 1 to ``--count`` (200)."""
    rows: list[list[str]] = []
    counts: dict[str, Any] = {}
    with answers.desk(options.only) as (session, exercises):
        log = session.workspace.root / "results" / "benchmarks" / "exercises.jsonl"
        log.parent.mkdir(parents=True, exist_ok=True)
        for exercise in exercises:
            asked = {SOLUTION, *(options.wrong.split(",") if options.wrong else exercise.manifest.chance)}
            attempts = [one for one in exercise_attempts(exercise) if one.name.removeprefix("wrong/") in asked]
            in_turn = [] if options.wrong else [one for one in attempts if one.name != SOLUTION]
            for attempt in attempts:
                first = in_turn.index(attempt) if attempt in in_turn else 0
                seeds = range(1 + first, 1 + (options.count or 200), len(in_turn) if attempt in in_turn else 1)
                runs = list(_runs(session, exercise, attempt, seeds, log))
                problems = [f"seed {one.seed}: {one.problem}" for one in runs if one.problem]
                good, each = len(runs) - len(problems), sum(one.seconds for one in runs) / len(runs)
                counts[f"{exercise.id} {attempt.name}"] = {"seeds": len(runs), "foreseen": good, "problems": problems}
                rows.append([exercise.id, attempt.name, f"{good} of {len(runs)}", f"{each:.1f}"])
                print(*rows[-1], *problems, flush=True)
    print(format_table(rows, HEADER, right=(3,)), "\n")
    print(markdown(rows, HEADER))
    return counts


def _runs(session: Session, exercise: Exercise, attempt: Attempt, seeds: range, log: Path) -> Iterator[Run]:
    """The runs of these seeds. A run that is in the log is not repeated."""
    files = _digest(exercise, attempt)
    done = {
        one.seed: one
        for one in _logged(log)
        if (one.exercise, one.answer, one.files) == (exercise.id, attempt.name, files)
    }
    for seed in seeds:
        if seed not in done:
            began = time.monotonic()
            problem = verify.problem_with(attempt, verify.judge_attempt(session, exercise, attempt, "local", [seed]))
            # These answers leave nothing behind in their model, so the next seed need not reload it.
            folder = session.workspace.folder(server.STACK)
            if folder.path.is_dir():
                folder.clean_file.touch()
            done[seed] = Run(exercise.id, attempt.name, files, seed, problem, round(time.monotonic() - began, 2))
            with log.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(asdict(done[seed])) + "\n")
        yield done[seed]


def _logged(log: Path) -> Iterator[Run]:
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        try:
            yield Run(**json.loads(line))
        except (ValueError, TypeError):  # cut off when a run was killed
            continue


def _digest(exercise: Exercise, attempt: Attempt) -> str:
    """A digest of the check, its manifest, and the answer."""
    digest = hashlib.sha256()
    for path in (exercise.folder / "check.py", exercise.folder / "exercise.yaml"):
        digest.update(path.read_bytes())
    for name in sorted(attempt.files):
        digest.update(attempt.files[name].encode())
    return digest.hexdigest()[:12]
