"""Verdicts: a run's numbers against what the lab says they prove."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl import contention
from labctl.lab import Verdict

MET, NOT_MET, UNMEASURED, BUSY = "met", "NOT MET", "unmeasured", "busy"


@dataclass(frozen=True)
class VerdictResult:
    """A verdict with its measurement."""

    name: str
    metric: str
    text: str
    value: float | None  # None: the run did not measure it
    met: bool
    word: str  # `met`, `NOT MET`, `unmeasured`, or `busy`: seconds were measured while other programs computed
    bound: str  # the limits, in words ("at least 0.5")
    taken: float = 0.0  # share of this machine's processors that other programs took

    @property
    def hint(self) -> str:
        """What was expected and what to try; "" unless the verdict is NOT MET or busy."""
        if self.word not in (NOT_MET, BUSY) or self.value is None:
            return ""
        expected = f"expected {self.bound}, measured {self.value:.4g}"
        if self.word == BUSY:
            return (
                f"{expected}, but other programs took {self.taken:.0%} of this machine's processors, so its seconds "
                "prove nothing; run it again when the machine is quiet"
            )
        return f"{expected}; the numbers are in report.md"

    def line(self) -> str:
        """The verdict as a line of a report."""
        return "; ".join(filter(None, (f"{self.word}: {self.text}", self.hint)))


class _Unmeasured:
    """Stands in a verdict's text for a number that this run does not have."""

    def __format__(self, spec: str) -> str:
        return UNMEASURED


def judge_verdict(verdict: Verdict, flat: Mapping[str, Any], taken: float = 0.0) -> VerdictResult:
    """Compare one verdict with the measured numbers. A missing number is never 'met'.

    Raises TypeError or ValueError: the text formats a number as what it is not.

    Args:
        flat: the run's metrics by their dotted names.
        taken: share of the machine's processors that other programs took during the run, 0 to 1.
    """
    limits = (("at least", verdict.at_least), ("at most", verdict.at_most))
    bound = " and ".join(f"{word} {limit:g}" for word, limit in limits if limit is not None)
    value = flat.get(verdict.value)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return VerdictResult(
            verdict.name, verdict.value, f"{verdict.name}: {verdict.value}", None, False, UNMEASURED, bound
        )
    enough = verdict.at_least is None or value >= verdict.at_least
    not_too_much = verdict.at_most is None or value <= verdict.at_most
    met = enough and not_too_much
    measured = {key: number for key, number in flat.items() if number is not None}
    text = verdict.text.format(value=value, m=defaultdict(_Unmeasured, measured))
    word = MET
    if not met:
        word = BUSY if verdict.timed and taken > contention.TOO_MUCH else NOT_MET
    return VerdictResult(verdict.name, verdict.value, text, float(value), met, word, bound, taken)


def verdict_section(verdicts: Sequence[VerdictResult]) -> str:
    """The verdicts as a part of report.md; "" if there are none."""
    lines = "".join(f"- {verdict.line()}\n" for verdict in verdicts)
    return f"\n## Verdicts\n\n{lines}" if lines else ""
