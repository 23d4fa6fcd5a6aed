"""Verdicts: a run's numbers against what the lab says they prove."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.manifest.schema import Verdict

MET, NOT_MET, UNMEASURED = "met", "NOT MET", "unmeasured"


@dataclass(frozen=True)
class VerdictResult:
    """A verdict with its measurement.

    Attributes:
        value: None where the run did not measure it.
        word: ``met``, ``NOT MET`` or ``unmeasured``.
        bound: what was wanted, in words ("at least 0.5").
    """

    name: str
    text: str
    value: float | None
    met: bool
    word: str
    bound: str

    @property
    def hint(self) -> str:
        """What was wanted and what to try; "" unless it is NOT MET."""
        if self.word != NOT_MET or self.value is None:
            return ""
        return f"wanted {self.bound}, measured {self.value:.4g}; {_advice()}"

    def line(self) -> str:
        """As a report has it."""
        return "; ".join(filter(None, (f"{self.word}: {self.text}", self.hint)))


class _Unmeasured:
    """Stands in a verdict's text for a number that this run does not have."""

    def __format__(self, spec: str) -> str:
        return UNMEASURED


class _Numbers(dict[str, Any]):
    def __missing__(self, key: str) -> _Unmeasured:
        return _Unmeasured()


def judge(verdict: Verdict, flat: Mapping[str, Any]) -> VerdictResult:
    """Hold one verdict against the measured numbers; a number that is missing is never 'met'."""
    bound = " and ".join(
        f"{word} {limit:g}"
        for word, limit in (("at least", verdict.at_least), ("at most", verdict.at_most))
        if limit is not None
    )
    value = _number(flat.get(verdict.value))
    if value is None:
        return VerdictResult(verdict.name, f"{verdict.name}: {verdict.value}", None, False, UNMEASURED, bound)
    met = (verdict.at_least is None or value >= verdict.at_least) and (
        verdict.at_most is None or value <= verdict.at_most
    )
    numbers = _Numbers({key: number for key, number in flat.items() if number is not None})
    try:
        text = verdict.text.format(value=value, m=numbers)
    except (KeyError, ValueError, IndexError, TypeError, AttributeError):
        text = f"{verdict.name}: {value:g}"
    return VerdictResult(verdict.name, text, value, met, MET if met else NOT_MET, bound)


def section(verdicts: Sequence[VerdictResult]) -> str:
    """The verdicts as a part of report.md; "" where there are none."""
    return "\n## Verdicts\n\n" + "".join(f"- {verdict.line()}\n" for verdict in verdicts) if verdicts else ""


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def _advice() -> str:
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > cores:
        return f"this machine is busy (load {load:.1f} on {cores} processors): run it again when it is quiet"
    return "run it again on a quiet machine; the numbers are in report.md"
