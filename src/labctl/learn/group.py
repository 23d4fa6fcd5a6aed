"""The progress of a group: what ``labctl exercise list --json`` says on each machine, brought together."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from labctl.learn.progress import NEW, PASSED, STARTED

SIGN = {NEW: ".", STARTED: "o", PASSED: "x"}
States = Mapping[str, str]  # of one learner's exercises, by their ids


def read_group_progress(files: Sequence[Path]) -> tuple[list[tuple[str, States]], list[str]]:
    """Each learner's name (the file's, without its ending) and states; one sentence for each file that is no list."""
    learners: list[tuple[str, States]] = []
    bad: list[str] = []
    for path in files:
        try:
            learners.append((path.stem, _states(json.loads(path.read_text(encoding="utf-8")))))
        except (OSError, ValueError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            bad.append(f"{path}: {why}; it should be what `labctl exercise list --json` prints")
    return learners, bad


def _states(rows: object) -> dict[str, str]:
    """Raises ValueError for anything but such a list."""
    if not isinstance(rows, list):
        raise ValueError("not a list")
    states = {}
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or row.get("state") not in [*SIGN]:
            raise ValueError(f"an entry without an id and one of the states {', '.join(SIGN)}")
        states[row["id"]] = row["state"]
    return states


def progress_rows(learners: Sequence[tuple[str, States]]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the group's table: a sign per exercise, and how many each has passed; the last row counts."""
    ids = sorted({id for _, states in learners for id in states})
    rows = []
    for name, states in sorted(learners, key=lambda learner: (-_count_passed(learner[1]), learner[0])):
        signs = [SIGN[states.get(id, NEW)] for id in ids]
        rows.append([name, *signs, f"{_count_passed(states)} of {len(ids)}"])
    sums = [str(sum(states.get(id) == PASSED for _, states in learners)) for id in ids]
    return ["", *ids, "passed"], [*rows, ["passed", *sums, f"of {len(learners)}"]]


def _count_passed(states: States) -> int:
    return sum(state == PASSED for state in states.values())
