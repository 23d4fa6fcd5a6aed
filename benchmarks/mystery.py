"""The sick server: does the reference detector of each fault find it in recorded runs, and nothing in healthy ones?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from labctl.mystery.case import find_faults
from labctl.workspace import Workspace
from labkit.predict import clinic
from labkit.predict.clinic import HEALTHY, Fault, Line
from labkit.tables import format_table

RUNS = 100


def run(count: int) -> dict[str, Any]:
    """``count`` healthy and sick runs for each fault; prints one table."""
    faults = find_faults(Workspace.find())
    well = faults.pop(HEALTHY)
    servers = {fault.replicas for fault in faults.values()}
    healthy = {number: _runs(replace(well, replicas=number), count, "healthy") for number in servers}
    found = {name: judge(fault, healthy[fault.replicas], list(faults.values())) for name, fault in faults.items()}
    rows = [
        (name, f"{one['found']} of {count}", f"{one['false']} of {count}", *_words(one)) for name, one in found.items()
    ]
    print(format_table(rows, ["fault", "found", "false", "steps that show it", "also called"], right=[1, 2, 3]))
    return found


def judge(fault: Fault, healthy: Sequence[Sequence[Line]], faults: Sequence[Fault]) -> dict[str, Any]:
    """One fault: in how many sick runs its detector finds it, in how many healthy ones too, and what others say.

    ``counters``: for each metric of the fault that a log has, in how many sick and healthy runs it is within bounds.
    """
    sick = _runs(fault, len(healthy), fault.name)
    shown = sorted(len(fault.shows(steps)) for steps in sick)
    others = {one.name: sum(map(one.sick, sick)) for one in faults if one.name != fault.name}
    return {
        "found": sum(map(fault.sick, sick)),
        "false": sum(map(fault.sick, healthy)),
        "shown": [shown[0], shown[-1]],
        "least": fault.least,
        "also": {name: count for name, count in others.items() if count},
        "counters": {name: [_within(fault, name, runs) for runs in (sick, healthy)] for name in _logged(fault)},
    }


def _runs(fault: Fault, count: int, seed: str) -> list[list[Line]]:
    return [clinic.record_fault(fault, f"{seed} {number}") for number in range(count)]


def _logged(fault: Fault) -> list[str]:
    return [name for name in fault.counters if name.endswith("_total")]


def _within(fault: Fault, counter: str, runs: Sequence[Sequence[Line]]) -> int:
    return sum(fault.within(counter, clinic.count_step_metrics(steps)[counter]) for steps in runs)


def _words(one: dict[str, Any]) -> tuple[str, str]:
    also = ", ".join(f"{name} {count}" for name, count in one["also"].items())
    return f"{one['shown'][0]} to {one['shown'][1]} (at least {one['least']})", also
