"""The progress of a group: what ``labctl exercise list --json`` says on each machine, brought together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labctl.learn.progress import NEW, PASSED, STARTED

STATES = (NEW, STARTED, PASSED)
SIGN = {NEW: ".", STARTED: "o", PASSED: "x"}


@dataclass(frozen=True)
class Learner:
    """One machine's exercises: each id's state. ``name`` is that of the file, without its ending."""

    name: str
    states: Mapping[str, str]

    @property
    def passed(self) -> int:
        return Counter(self.states.values())[PASSED]


def read(files: Sequence[Path]) -> tuple[list[Learner], list[str]]:
    """The learners, and one sentence for each file that is no such list."""
    learners, bad = [], []
    for path in files:
        try:
            learners.append(Learner(path.stem, _states(json.loads(path.read_text(encoding="utf-8")))))
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            bad.append(f"{path}: {why}; it should be what `labctl exercise list --json` prints")
    return learners, bad


def _states(rows: object) -> dict[str, str]:
    """Raises ValueError for anything but such a list."""
    if not isinstance(rows, list):
        raise ValueError("not a list")
    states = {}
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("id"), str) or row.get("state") not in STATES:
            raise ValueError(f"an entry without an id and one of the states {', '.join(STATES)}")
        states[row["id"]] = row["state"]
    return states


def rows(learners: Sequence[Learner]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the group's table: a sign per exercise, and how many each has passed; the last row counts."""
    ids = sorted({id for learner in learners for id in learner.states})
    body = [
        [learner.name, *(SIGN[learner.states.get(id, NEW)] for id in ids), f"{learner.passed} of {len(ids)}"]
        for learner in sorted(learners, key=lambda learner: (-learner.passed, learner.name))
    ]
    sums = [str(sum(learner.states.get(id) == PASSED for learner in learners)) for id in ids]
    return ["", *ids, "passed"], [*body, ["passed", *sums, f"of {len(learners)}"]]
