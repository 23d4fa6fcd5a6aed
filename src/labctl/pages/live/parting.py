"""The first step at which two runs of the same requests part, and why."""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping, Sequence
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
        """The names of all its requests."""
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
    first_names, second_names = names
    first, second = (_steps_of(lane) for lane in (one, other))
    title = one.title if one.title == other.title else f"{one.title} and {other.title}"
    for at, lines in enumerate(zip_longest(first, second)):
        if differ := differing_requests(lines, names):
            sides = (
                side_of_parting(lines[0], _requests_of(first[:at]), first_names, differ),
                side_of_parting(lines[1], _requests_of(second[:at]), second_names, differ),
            )
            shown = sides[0].names() | sides[1].names()
            second_ids = {name: id for id, name in second_names.items()}
            ids = {name: (id, second_ids[name]) for id, name in first_names.items() if name in shown}
            return Parting(title, len(first_names), at, sides, ids)
    return Parting(title, len(first_names), len(first))


def _steps_of(lane: InstanceSteps) -> list[Line]:
    return [line for line in lane.lines if line["kind"] not in (CHANGE, HELD)]


def _requests_of(steps: Sequence[Line]) -> set[str]:
    return {name for line in steps for name in line["ids"]}


def pair_lanes(
    some: Sequence[InstanceSteps], others: Sequence[InstanceSteps]
) -> list[tuple[InstanceSteps, InstanceSteps]]:
    """The lanes of two runs that belong together: by phase and model, or by model where each has one phase of it.

    Raises LabError: there are none.
    """
    keys: list[Callable[[InstanceSteps], Hashable]] = [lambda lane: lane.key, lambda lane: lane.key.model]
    for key in keys:
        by_key = {key(lane): lane for lane in others}
        pairs = [(lane, by_key[key(lane)]) for lane in some if key(lane) in by_key]
        if pairs and len({key(lane) for lane in some}) == len(some) and len(by_key) == len(others):
            return pairs
    phases = [", ".join(dict.fromkeys(lane.title for lane in lanes)) for lanes in (some, others)]
    raise LabError(
        "the two runs have no phase and model in common",
        f"the first has {phases[0]}; the second has {phases[1]}",
        "name the phases: labctl explain --diff RESULT/steps-PHASE.jsonl RESULT/steps-PHASE.jsonl",
        code="runs-without-common-phase",
    )


def _pair_requests(one: InstanceSteps, other: InstanceSteps) -> tuple[Names, Names]:
    """The names in the first run for the ids of each."""
    ids, other_ids = one.requests(), other.requests()
    if len(ids) != len(other_ids):
        raise LabError(
            "the two runs did not have the same requests",
            f"{one.title}: {len(ids)} requests; {other.title}: {len(other_ids)}",
            "run both with the same settings and --seed",
            code="runs-with-other-requests",
        )
    pairs = dict(zip(ids, other_ids, strict=True))
    labels = [one.labels.get(id, "") for id in ids]
    by_label = {other.labels.get(id, ""): id for id in other_ids}
    if "" not in labels and len(by_label) == len(ids) and by_label.keys() == {*labels}:
        pairs = {id: by_label[label] for id, label in zip(ids, labels, strict=True)}
    return {id: one.names[id] for id in ids}, {other_id: one.names[id] for id, other_id in pairs.items()}


def differing_requests(lines: Sequence[Line | None], names: Sequence[Names]) -> list[str]:
    """The requests for which two steps compute different numbers of tokens; None: a run has no more steps."""
    first, second = (_computed(line, called) for line, called in zip(lines, names, strict=True))
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def _computed(line: Line | None, called: Names) -> dict[str, int]:
    """The tokens that a step computed, by request. One that joins and must wait for the next step is left out."""
    counts = zip(line["ids"], line["tokens"], strict=True) if line else ()
    return {called[name]: count for name, count in counts if count}


def side_of_parting(line: Line | None, seen: Container[str], called: Names, differ: Sequence[str]) -> Side:
    """How a run treated the requests ``differ`` in one step; ``seen`` are the requests of the steps before."""
    if line is None:
        return Side(0, (), (), dict.fromkeys(differ, "the run is over"))
    ids = {name: id for id, name in called.items()}
    reasons = {}
    for name in differ:
        event = next(events_of(line, ids[name], called), None)
        if event:
            reasons[name] = f"{event.what}: {event.words}".removesuffix(": ")
        else:
            reasons[name] = "has ended" if ids[name] in seen else "has not arrived"
    batch = tuple(called[id] for id in line["ids"])
    waiting = tuple(called[id] for id in line["waiting"])
    return Side(line["n"], batch, waiting, reasons)
