"""Signs in the steps of a log that detectors of several faults share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Line = Mapping[str, Any]


class Overtaking(NamedTuple):
    """In ``step`` the request ``joined`` joins for the first time, before ``others``, which came in earlier steps."""

    step: Line
    joined: str
    others: Sequence[str]


def overtakings(steps: Sequence[Line]) -> Iterator[Overtaking]:
    """Every time that a request goes before an earlier one, in the order of the log."""
    seen: dict[tuple[str, str], int] = {}  # by replica and name: the step in which each was seen first
    joined = set[tuple[str, str]]()
    for number, step in enumerate(steps):
        where = step["replica"]
        for name in (*step["waiting"], *step["ids"]):
            seen.setdefault((where, name), number)
        new = [name for name in step["joined"] if (where, name) not in joined]
        joined.update((where, name) for name in new)
        waiting = [other for other in step["waiting"] if (where, other) not in joined]
        for name in new:
            others = [other for other in waiting if seen[where, other] < seen[where, name]]
            if others:
                yield Overtaking(step, name, others)


def lateness(step: Line) -> float:
    """Seconds that a step took longer than its engine, and than the GPU's model says."""
    return float(step["dur"] - max(step["engine_us"], step.get("paced_us", 0)) / 1e6)


def tenant(name: str) -> str:
    """The request's tenant: the load's names end with it."""
    return name.rpartition("-")[2]
