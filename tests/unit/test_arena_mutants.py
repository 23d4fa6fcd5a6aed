"""Mutated policies: the referee names the ones that break a rule, and lets the others play to the end."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from benchmarks.arena import mutant
from labkit.predict import games, referee

ARENA = Path(__file__).resolve().parents[2] / "labs" / "extras" / "arena"


@pytest.mark.parametrize(
    ("name", "seed", "change", "foul"),
    [
        ("edf", 6, "return 0", "victim"),
        ("keep_a_quarter", 11, "else None", "reserve"),
        ("memory_ahead", 3, "max(1000000000, whole", "starves"),
        ("memory_ahead", 9, "return [one.made for", "line"),
        ("srpt_limited", 0, "request.limit - request.none", "crashed"),
        ("edf", 5, "150 * request.priority * request.came_ms", ""),
        ("mlfq", 6, "LEVELS = (1.5, 256, 1024)", ""),
        ("vtc", 1, "reverse=-1", ""),
    ],
)
def test_a_mutated_policy_that_breaks_a_rule_is_named_and_another_one_plays(
    tmp_path: Path, name: str, seed: int, change: str, foul: str
) -> None:
    path = tmp_path / "mutant.py"
    path.write_text(mutant((ARENA / f"{name}.py").read_text(), random.Random(seed)))
    assert change in path.read_text()
    standing = referee.judge(path, {"thrash": games.thrash(random.Random(1), 24)})
    assert standing.foul == foul, standing.why
    assert list(standing.games) == ([] if foul else ["thrash"])
