"""The slot timeline: which sequence sat in which slot of which instance, when, and how full each execution was.

It has two independent sources: the decisions of Triton's sequence batcher, from the verbose log (``--log-verbose=1``)
of Triton 2.51, and the control inputs that the model saw and wrote into its step log. The verbose log slows the server
down, so it is read from a run of its own, and nothing is timed in that run.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from labkit.errors import LabError
from labsched.log.files import open_to_read
from labsched.step import NOT_RECORDED, Step

Place = tuple[str, int]  # an instance, and a slot or a row of it
_STAMP = re.compile(r"^[IWE](?P<day>\d{4}) (?P<clock>\d\d:\d\d:\d\d\.\d{6}) ")
_PLACE = r"batcher (?P<instance>\S+), (?:sequence )?slot (?P<slot>\d+)"
_TEXTS = (
    ("enter", re.compile(rf"Enqueuing CORRID (?P<id>.+) into {_PLACE}: (?P<model>\S+?)\"?$")),
    ("enter", re.compile(rf"CORRID (?P<id>.+) reusing {_PLACE}: (?P<model>\S+?)\"?$")),
    ("wait", re.compile(r"Enqueuing CORRID (?P<id>.+) into (?:new|existing) backlog: (?P<model>\S+?)\"?$")),
    ("end", re.compile(rf"(?:\b[Ee]nd sequence|Reaper: force-ending) CORRID (?P<id>.+) in {_PLACE}")),
    ("execute", re.compile(r"model (?P<model>\S+), instance (?P<instance>\S+), executing (?P<size>\d+) requests")),
)


@dataclass(frozen=True)
class SlotEvent:
    """One line of the log.

    ``kind`` is wait (a request joined the backlog), enter (a request came into a slot), end (of a sequence) or execute
    (``size`` requests, empty rows included). ``at`` is in seconds; only differences mean anything.
    """

    at: float
    kind: str
    instance: str = ""
    id: str = ""
    slot: int | None = None
    size: int | None = None


def read_slot_log(path: Path, model: str) -> list[SlotEvent]:
    """Every decision on the sequences of ``model``, in the order of the log.

    Raises:
        LabError: there is no such log, or it is not a verbose one.
    """
    try:
        with open_to_read(path) as stream:
            lines = stream.read().decode(errors="replace").splitlines()
    except OSError as error:
        raise LabError(f"{path} cannot be read", str(error), "--set log_verbose=true", code="log-unreadable") from error
    events = [event for line in lines if (event := parse_slot_event(line, model))]
    if not events:
        raise LabError(
            f"{path} has no line about sequences of {model}", "", "--set log_verbose=true", code="slot-lines-none"
        )
    return events


def parse_slot_event(line: str, model: str) -> SlotEvent | None:
    """One line, if it is about a sequence or an execution of ``model``."""
    stamp = _STAMP.match(line)
    if not stamp:
        return None
    for kind, pattern in _TEXTS:
        if match := pattern.search(line):
            fields = match.groupdict()
            instance = fields.get("instance") or ""
            owner = fields.get("model") or re.sub(r"_\d+_\d+$", "", instance)
            if owner != model:
                return None
            # The log has no year: 2000 is a leap year, so every date is valid. It has no time zone either, and UTC has
            # no hour that is left out.
            at = datetime.strptime(f"2000{stamp['day']} {stamp['clock']}", "%Y%m%d %H:%M:%S.%f").replace(tzinfo=UTC)
            return SlotEvent(
                at=at.timestamp(),
                kind=kind,
                instance=instance.removeprefix(f"{model}_"),
                id=fields.get("id") or "",
                slot=int(fields["slot"]) if fields.get("slot") else None,
                size=int(fields["size"]) if fields.get("size") else None,
            )
    return None


@dataclass
class Stay:
    """One sequence in one slot, from its first request there to its end; ``requests`` are the times of all of them."""

    id: str
    instance: str
    slot: int
    began: float
    ended: float
    requests: list[float] = field(default_factory=list)


@dataclass
class Wait:
    """One sequence in the backlog, because every slot was taken."""

    id: str
    began: float
    ended: float


@dataclass(frozen=True)
class Execution:
    """One call of the model. ``rows`` are the sequences' ids, "" for an empty row; () if they are unknown."""

    at: float
    instance: str
    size: int
    rows: Sequence[str] = ()


@dataclass(frozen=True)
class Timeline:
    """The work of one model's sequence batcher. Times are in seconds; only their differences mean anything."""

    stays: Sequence[Stay]
    waits: Sequence[Wait]
    executions: Sequence[Execution]

    @property
    def began(self) -> float:
        """When the first request came."""
        return min([*(stay.began for stay in self.stays), *(wait.began for wait in self.waits)])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timeline:
        return cls(
            [Stay(**stay) for stay in data["stays"]],
            [Wait(**wait) for wait in data["waits"]],
            [Execution(**execution) for execution in data["executions"]],
        )


def timeline(events: Sequence[SlotEvent], ids: Iterable[object] = ()) -> Timeline:
    """Stays, waits and executions; with ``ids`` only of those sequences, and of the time in which they were there."""
    followed = {str(id) for id in ids}
    stays: list[Stay] = []
    waits: list[Wait] = []
    open_stays: dict[str, Stay] = {}
    waiting: dict[str, Wait] = {}
    for event in events:
        if event.kind == "execute" or (followed and event.id not in followed):
            continue
        if event.kind == "wait":
            waiting.setdefault(event.id, Wait(event.id, event.at, event.at))
        elif event.kind == "enter":
            assert event.slot is not None
            if wait := waiting.pop(event.id, None):
                wait.ended = event.at
                waits.append(wait)
            stay = open_stays.get(event.id)
            if stay is None or (stay.instance, stay.slot) != (event.instance, event.slot):
                stay = open_stays[event.id] = Stay(event.id, event.instance, event.slot, event.at, event.at)
                stays.append(stay)
            stay.requests.append(event.at)
            stay.ended = event.at
        elif stay := open_stays.pop(event.id, None):
            stay.ended = event.at
    first = min((stay.began for stay in stays), default=0.0)
    last = max((stay.ended for stay in stays), default=0.0)
    executions = [
        Execution(event.at, event.instance, event.size)
        for event in events
        # The last batch begins a moment after the last request has entered.
        if event.size is not None and stays and first <= event.at <= last + 1.0
    ]
    return Timeline(stays, [*waits, *waiting.values()], executions)


def executed_places(steps: Iterable[Step]) -> dict[str, set[Place]]:
    """The places in which each sequence was ever executed, by the model's own log."""
    places: dict[str, set[Place]] = defaultdict(set)
    for step in steps:
        for id, row in zip(step.ids, step.rows, strict=True):
            places[id].add((step.instance or NOT_RECORDED, row))
    return dict(places)


def execution_rows(step: Step) -> int:
    """The rows of an execution, the empty ones included."""
    return step.batch + int(step.more["empty"])


def disagreements(timeline: Timeline, steps: Sequence[Step], direct: bool) -> list[str]:
    """Where Triton's log and the model's own log of the same sequences differ, in words; [] if nowhere.

    Compared are the number of requests of each sequence, the size of every execution of each instance in order, and
    where each sequence was: its instance, and with ``direct``, where the slot is the row, the slot.
    """
    problems = []
    entered: Counter[str] = Counter()
    places: dict[str, set[Place]] = defaultdict(set)
    for stay in timeline.stays:
        entered[stay.id] += len(stay.requests)
        places[stay.id].add((stay.instance, stay.slot))
    counted = Counter(id for step in steps for id in step.ids)
    own = executed_places(steps)
    for id in sorted(entered | counted):
        if entered[id] != counted[id]:
            problems.append(f"sequence {id}: {entered[id]} requests in Triton's log, the model had {counted[id]}")
        in_log, in_model = _shown(places.get(id, ()), direct), _shown(own.get(id, ()), direct)
        if in_log != in_model:
            problems.append(f"sequence {id}: in {in_log} by Triton's log, in {in_model} by the model's")
    sizes: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for execution in timeline.executions:
        sizes[execution.instance][0].append(execution.size)
    for step in steps:
        sizes[step.instance or NOT_RECORDED][1].append(execution_rows(step))
    for instance, (logged_sizes, own_sizes) in sorted(sizes.items()):
        if logged_sizes != own_sizes:
            problems.append(f"instance {instance}: batches of {logged_sizes}, the model had {own_sizes}")
    return problems


def _shown(places: Iterable[Place], direct: bool) -> str:
    return ", ".join(sorted({f"{instance} slot {slot}" if direct else instance for instance, slot in places}))


def with_rows(timeline: Timeline, steps: Sequence[Step]) -> Timeline:
    """The timeline with the sequences in each execution's rows: an instance's n-th execution is its n-th step."""
    own: dict[str, list[Step]] = defaultdict(list)
    for step in steps:
        own[step.instance or NOT_RECORDED].append(step)
    executions = []
    for execution in timeline.executions:
        rows = execution.rows
        if own[execution.instance]:
            step = own[execution.instance].pop(0)
            id_of_row = dict(zip(step.rows, step.ids, strict=True))
            rows = [id_of_row.get(row, "") for row in range(execution_rows(step))]
        executions.append(replace(execution, rows=rows))
    return replace(timeline, executions=executions)
