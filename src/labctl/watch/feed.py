"""From the lines of step logs to what the page takes: the one place that knows both forms.

The page takes a list of events, each a small object with short names (``page/store.js`` says which): a lane for each
instance of a model, then its steps, with requests and seats as numbers. It is the same list whether it is read while
it happens, from a run that is over, or out of a ``timeline.html``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Event = dict[str, Any]
Line = Mapping[str, Any]

HELD = "held"  # the kind of a line that tells of a step that waits for the clock; it is in no log
LABEL = 120  # characters of a prompt that the page may show


class _Lane:
    """One instance of a model: what its requests are called on the page, and who sat where."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.steps = 0
        self.known: dict[str, int] = {}  # a live request's name in the log -> its number on the page
        self.seats: dict[str, int] = {}  # of a log that does not tell (version 1)
        self.sitting: dict[int, str] = {}  # of sequences, by seat


class Feed:
    """Takes lines in order of time; keeps what it needs to name things.

    Args:
        notes: by model, a sentence that stands under its name.
        labels: by (model, id), the prompt of a request, where the log itself does not have it.
    """

    def __init__(
        self, notes: Mapping[str, str] | None = None, labels: Mapping[tuple[str, str], str] | None = None
    ) -> None:
        self._notes, self._labels = notes or {}, labels or {}
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._requests = 0

    def events(self, lines: Iterable[Line]) -> list[Event]:
        """What the page is to take for these lines."""
        found: list[Event] = []
        for line in lines:
            found += self._line(line)
        return found

    def _line(self, line: Line) -> list[Event]:
        events: list[Event] = []
        model, instance = str(line["model"]), str(line["instance"])
        lane = self._lanes.get((model, instance))
        if lane is None:
            lane = self._lanes[model, instance] = _Lane(len(self._lanes))
            others = sum(name == model for name, _ in self._lanes)
            name = model if others == 1 else f"{model} ({instance})"
            events.append(_lean(k="model", name=name, model=model, note=self._notes.get(model)))
        events.append(self._step(lane, model, line))
        return events

    def _step(self, lane: _Lane, model: str, line: Line) -> Event:
        new: list[list[Any]] = []

        def number(name: str) -> int:
            if name not in lane.known:
                label = str(line.get("prompts", {}).get(name) or self._labels.get((model, name), ""))
                lane.known[name] = self._requests
                new.append([self._requests, name, label[:LABEL]])
                self._requests += 1
            return lane.known[name]

        ids: Sequence[str] = line["ids"]
        rows = self._rows(lane, line, ids)
        members: list[int] = []
        for place, name in enumerate(ids):
            first = _phase(line, place) == "p"
            made = line["made"][place] if "made" in line else 1
            blocks = line["blocks"][place] if "blocks" in line else 0
            members += (number(name), rows[place], int(first), made, blocks)
        waiting = [number(name) for name in line.get("waiting", ())]
        evicted = [number(name) for name in line.get("evicted", ())]
        ended = [[number(name), why] for name, why in line.get("ended", {}).items()]
        seated = [part for seat, name in enumerate(line.get("seats", ())) if name for part in (number(name), seat)]
        if "start" in line:  # sequences: one keeps its seat between its requests, and only their ends are told
            lane.sitting |= {rows[place]: name for place, name in enumerate(ids)}
            for seat in [seat for seat, name in lane.sitting.items() if name in line.get("ended", {})]:
                del lane.sitting[seat]
            seated = [part for seat, name in sorted(lane.sitting.items()) for part in (number(name), seat)]
        told = "seats" in line or "start" in line
        for name in line.get("ended", {}):
            lane.known.pop(name, None)
        event = _lean(
            m=lane.number, q=new, w=waiting, y=line.get("why") if waiting else None, v=evicted, e=ended,
            z=line.get("slots"), more=max(0, line.get("queue", 0) - len(waiting)),
        )  # fmt: skip
        if line.get("kind") == HELD:
            event |= {"s": seated} if told else {}
            return event | {"k": "state", "t": line["t"], "next": members[::5]}
        if line.get("kind") == "change":
            return event | {"k": "state", "s": seated, "t": line["t"]}
        lane.steps += 1
        if "kv_blocks" in line:
            event["kv"] = [line["kv_blocks_used"], line["kv_blocks"]]
        if any(line.get("texts", ())):
            event["x"] = line["texts"]
        if told and seated != _stay(members, ended):
            event["s"] = seated
        return event | {"n": line.get("n", lane.steps), "t": line["t"], "d": line["dur"], "r": members}

    @staticmethod
    def _rows(lane: _Lane, line: Line, ids: Sequence[str]) -> Sequence[int]:
        """The seat of each; where the log does not tell, the lowest that was free when it came."""
        if "rows" in line:
            rows: Sequence[int] = line["rows"]
            return rows
        lane.seats = {name: seat for name, seat in lane.seats.items() if name in ids}
        for name in ids:
            taken = set(lane.seats.values())
            lane.seats.setdefault(name, next(seat for seat in range(len(taken) + 1) if seat not in taken))
        return [lane.seats[name] for name in ids]


def _phase(line: Line, place: int) -> str:
    """p or d; version 1 tells only how many are new, and they are the last of the batch."""
    if "phase" in line:
        return str(line["phase"][place])
    return "p" if place >= len(line["ids"]) - int(line.get("prefill", 0)) else "d"


def _stay(members: Sequence[int], ended: Sequence[Sequence[Any]]) -> list[int]:
    """Request and seat, by seat, of those members of a step that go on."""
    gone = {request for request, _ in ended}
    stay = sorted((members[k + 1], members[k]) for k in range(0, len(members), 5) if members[k] not in gone)
    return [part for seat, request in stay for part in (request, seat)]


def _lean(**fields: Any) -> Event:
    """An object without what is empty."""
    return {name: value for name, value in fields.items() if value not in (None, [], "", 0) or name == "m"}
