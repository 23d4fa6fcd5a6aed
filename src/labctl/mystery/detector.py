"""A learner's ``sick(steps)``, judged on recorded runs of healthy and of sick servers. No server is needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from labctl.learn import sandbox
from labkit.errors import LabError
from labkit.predict import clinic
from labkit.predict.clinic import Fault

FUNCTION = "sick"
SECONDS = 20.0  # for one run's steps


@dataclass(frozen=True)
class Score:
    """A detector's score: ``found`` of ``runs`` sick runs and ``false`` of as many healthy runs were called sick."""

    fault: str
    runs: int
    found: int
    false: int


def judge_detector(
    file: Path, healthy: Fault, faults: Sequence[Fault], runs: int, seed: str, tell: Callable[[str], object] = str
) -> list[Score]:
    """Score the file's function for each fault. ``tell`` gets each fault's name before its runs.

    Raises LabError: the function raised, took too long, or answered neither True nor False.
    """
    false: dict[int, int] = {}  # by the number of replicas
    scores = []
    for fault in faults:
        tell(fault.name)
        if fault.replicas not in false:
            false[fault.replicas] = _called(file, replace(healthy, replicas=fault.replicas), runs, f"{seed} healthy")
        scores.append(Score(fault.name, runs, _called(file, fault, runs, seed), false[fault.replicas]))
    return scores


def _called(file: Path, fault: Fault, runs: int, seed: str) -> int:
    """How many of the runs the function calls sick."""
    count = 0
    for number in range(runs):
        answer = sandbox.call_in_sandbox(file, FUNCTION, [clinic.record_fault(fault, f"{seed} {number}")], SECONDS)
        if not isinstance(answer, bool):
            raise LabError(
                f"{FUNCTION} in {file.name} must return True or False",
                f"it returned {answer!r}",
                code="detector-answer-invalid",
            )
        count += answer
    return count
