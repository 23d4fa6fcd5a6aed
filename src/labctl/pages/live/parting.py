"""The first step at which two runs of the same requests part, and why."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from labctl.pages.live.lines import CHANGE, HELD, Line
from labctl.pages.live.story import InstanceSteps, events_of
from labkit.errors import LabError

Names = Mapping[str, str]  # the names that both runs share, by the ids in one log


@dataclass(frozen=True)
class Side:
    """One of two runs at the step at which they part. Requests have the names that both runs share."""

    step: int  # in the log; 0: the run has no more steps
    batch: tuple[str, ...]
    waiting: tuple[str, ...]
    reasons: Mapping[str, str]  # why this run treats these requests differently from the other run

    def names(self) -> set[str]:
        """Those of all its requests."""
        return {*self.batch, *self.waiting, *self.reasons}


@dataclass(frozen=True)
class Parting:
    """Where two runs part. ``sides`` is None if they never do; ``steps`` are the same before that.

    ``ids`` are those of the requests that the sides name, in both logs.
    """

    title: str
    requests: int
    steps: int
    sides: tuple[Side, Side] | None = None
    ids: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def find_parting(one: InstanceSteps, other: InstanceSteps) -> Parting:
    """The first step at which the batches differ, or the tokens that are computed for a request.

    Requests are paired by their labels, or else by their order in the log, and named as in the first run. Raises
    LabError: the two runs did not have the same number of requests.
    """
    names = _pair_requests(one, other)
    first, second = ([line for line in lane.lines if line["kind"] not in (CHANGE, HELD)] for lane in (one, other))
    title = one.title if one.title == other.title else f"{one.title} and {other.title}"
    for at, lines in enumerate(zip_longest(first, second)):
        if differ := differing_requests(lines, names):
            seen = [{name for line in all_[:at] for name in line["ids"]} for all_ in (first, second)]
            one_side, other_side = (side_of_parting(*each, differ) for each in zip(lines, seen, names, strict=True))
            shown = {*one_side.names(), *other_side.names()}
            other_ids = {name: id for id, name in names[1].items()}
            ids = {name: (id, other_ids[name]) for id, name in names[0].items() if name in shown}
            return Parting(title, len(names[0]), at, (one_side, other_side), ids)
    return Parting(title, len(names[0]), len(first))


def pair_lanes(
    some: Sequence[InstanceSteps], others: Sequence[InstanceSteps]
) -> list[tuple[InstanceSteps, InstanceSteps]]:
    """The lanes of two runs that belong together: by phase and model, or by model where each has one phase of it.

    Raises LabError: there are none.
    """
    for key in (lambda lane: (lane.phase, lane.replica, lane.model, lane.instance), lambda lane: lane.model):
        known = {key(lane): lane for lane in others}
        found = [(lane, known[key(lane)]) for lane in some if key(lane) in known]
        if found and len({key(lane) for lane in some}) == len(some) and len(known) == len(others):
            return found
    phases = [", ".join(dict.fromkeys(lane.title for lane in lanes)) for lanes in (some, others)]
    raise LabError(
        "the two runs have no phase and model in common",
        f"the first has {phases[0]}; the second has {phases[1]}",
        "name the phases: labctl explain --diff RESULT/steps-PHASE.jsonl RESULT/steps-PHASE.jsonl",
        code="runs-without-common-phase",
    )


def _pair_requests(one: InstanceSteps, other: InstanceSteps) -> tuple[Names, Names]:
    asked = one.requests(), other.requests()
    if len(asked[0]) != len(asked[1]):
        raise LabError(
            "the two runs did not have the same requests",
            f"{one.title}: {len(asked[0])} requests; {other.title}: {len(asked[1])}",
            "run both with the same settings and --seed",
            code="runs-with-other-requests",
        )
    shared = [[lane.labels.get(name, "") for name in names] for lane, names in zip((one, other), asked, strict=True)]
    pairs = dict(zip(*asked, strict=True))
    if "" not in shared[0] and sorted(shared[0]) == sorted(shared[1]):
        known = dict(zip(shared[1], asked[1], strict=True))
        pairs = {id: known[label] for id, label in zip(asked[0], shared[0], strict=True)}
    return {id: one.names[id] for id in pairs}, {theirs: one.names[id] for id, theirs in pairs.items()}


def differing_requests(lines: Sequence[Line | None], names: Sequence[Names]) -> list[str]:
    """The requests for which two steps compute different numbers of tokens; None: a run has no more steps."""
    mine, theirs = (_computed(line, called) for line, called in zip(lines, names, strict=True))
    return [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]


def _computed(line: Line | None, called: Names) -> dict[str, int]:
    """The tokens that a step computed, by request. One that has joined and must wait for the next step has none."""
    counts = zip(line["ids"], line["tokens"], strict=True) if line else ()
    return {called[name]: count for name, count in counts if count}


def side_of_parting(line: Line | None, seen: Container[str], called: Names, differ: Sequence[str]) -> Side:
    """How a run treated the requests ``differ`` in one step; ``seen`` are the requests of the steps before."""
    if line is None:
        return Side(0, (), (), dict.fromkeys(differ, "the run is over"))
    there, reasons = {shared: name for name, shared in called.items()}, {}
    for name in differ:
        event = next(events_of(line, there[name], called), None)
        if event:
            reasons[name] = f"{event.what}: {event.words}".removesuffix(": ")
        else:
            reasons[name] = "has ended" if there[name] in seen else "has not arrived"
    batch, waiting = (tuple(called[name] for name in line[field]) for field in ("ids", "waiting"))
    return Side(line["n"], batch, waiting, reasons)
