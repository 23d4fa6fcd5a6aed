"""The functions of PromQL that alerting rules need: samples of one series in, one number out.

``rate``, ``increase`` and ``delta`` extrapolate as ``extrapolatedRate`` of Prometheus does (promql/functions.go).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

Samples = Sequence[tuple[float, float]]  # (seconds, value), in order of time
NEAR = 1.1  # gaps between samples: a boundary that is nearer than this is reached by extrapolation
# Of samples, and of the seconds at which the range begins and ends; None: the series gives no value.
OverTime = Callable[[Samples, float, float], float | None]


def extrapolated(samples: Samples, begin: float, end: float, counter: bool) -> float | None:
    """By how much the value changed between ``begin`` and ``end``, in its own unit; None for fewer than two samples.

    The first and last samples lie inside the range, so the change between them is stretched: to each boundary that is
    nearer than ``NEAR`` times the mean gap between samples, else by half a gap. A counter is stretched no further back
    than to where it would have been zero, and a value below the one before it is a reset to zero.
    """
    if len(samples) < 2:
        return None
    (first_at, first), (last_at, last) = samples[0], samples[-1]
    change = last - first
    if counter:
        change += sum(before for (_, before), (_, value) in pairwise(samples) if value < before)
    sampled = last_at - first_at
    gap = sampled / (len(samples) - 1)
    before, after = first_at - begin, end - last_at
    before = before if before < NEAR * gap else gap / 2
    after = after if after < NEAR * gap else gap / 2
    if counter and change > 0 and first >= 0:
        before = min(before, sampled * first / change)
    return change * (sampled + before + after) / sampled


def increase(samples: Samples, begin: float, end: float) -> float | None:
    return extrapolated(samples, begin, end, counter=True)


def rate(samples: Samples, begin: float, end: float) -> float | None:
    """Increase per second."""
    found = increase(samples, begin, end)
    return None if found is None else found / (end - begin)


def delta(samples: Samples, begin: float, end: float) -> float | None:
    return extrapolated(samples, begin, end, counter=False)


def resets(samples: Samples, begin: float, end: float) -> float:
    return float(sum(value < before for (_, before), (_, value) in pairwise(samples)))


def changes(samples: Samples, begin: float, end: float) -> float:
    return float(sum(value != before for (_, before), (_, value) in pairwise(samples)))


def _over(reduce: Callable[[list[float]], float]) -> OverTime:
    return lambda samples, begin, end: float(reduce([value for _, value in samples]))


OVER_TIME: dict[str, OverTime] = {
    "rate": rate,
    "increase": increase,
    "delta": delta,
    "resets": resets,
    "changes": changes,
    "avg_over_time": _over(lambda values: sum(values) / len(values)),
    "min_over_time": _over(min),
    "max_over_time": _over(max),
    "sum_over_time": _over(sum),
    "count_over_time": _over(len),
}
AGGREGATIONS: dict[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
    "count": len,
}
