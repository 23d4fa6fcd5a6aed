"""Converts lines of step logs to the page's events: the one place that knows both forms.

The events (:mod:`labctl.pages.live.events`) are a lane for each instance of a model, then its steps. They are the same
for a live server, a run that is over, and a ``timeline.html``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from labctl.pages.live.events import LaneEvent
from labctl.pages.live.lines import CHANGE, HELD, Instance, Line
from labkit.evidence.names import LetterNames

FIELDS = 5  # numbers of each member of a step: request, seat, 1 for prefill, new tokens, KV blocks
LABEL = 120  # characters of a prompt that the page may show


@dataclass
class _Lane:
    """One instance of a model: its number, and what its live requests are called on the page, by name in the log."""

    number: int
    instance: Instance = field(default_factory=Instance)
    requests: dict[str, int] = field(default_factory=dict)


class Feed:
    """Takes lines in order of time; keeps what it needs to name things."""

    def __init__(self, names: LetterNames | None = None) -> None:
        self.names = LetterNames() if names is None else names  # the requests' names for people
        self.labels: Mapping[str, str] = {}  # the prompts of requests, where the log has none
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._requests = 0

    def events(self, lines: Iterable[Line]) -> list[LaneEvent]:
        """The page's events for these lines."""
        return [event for line in lines for event in self._line(line)]

    def _line(self, line: Line) -> list[LaneEvent]:
        model, instance = str(line["model"]), str(line["instance"])
        if lane := self._lanes.get((model, instance)):
            return [self._step(lane, lane.instance.whole(line))]
        lane = self._lanes[model, instance] = _Lane(len(self._lanes))
        others = sum(name == model for name, _ in self._lanes)
        name = model if others == 1 else f"{model} ({instance})"
        # A log with seats or sequences says when a request leaves its seat; a log of single executions does not.
        tells = "seats" in line or "start" in line or None
        opened = _lean(k="model", name=name, model=model, tells=tells)
        return [opened, self._step(lane, lane.instance.whole(line))]

    def _step(self, lane: _Lane, line: Line) -> LaneEvent:
        new: list[list[Any]] = []
        prompts = line.get("prompts")
        if not isinstance(prompts, dict):  # models of lab 02 log their number under this name
            prompts = {}

        def number(name: str) -> int:
            if name not in lane.requests:
                lane.requests[name] = self._requests
                label = str(prompts.get(name) or self.labels.get(name, ""))[:LABEL]
                new.append([self._requests, name, label, self.names[name]])
                self._requests += 1
            return lane.requests[name]

        members: list[int] = []
        columns = zip(line["ids"], line["rows"], line["phase"], line["made"], line["blocks"], strict=True)
        for name, row, phase, made, blocks in columns:
            members += (number(name), row, int(phase == "p"), made, blocks)
        waiting = [number(name) for name in line["waiting"]]
        evicted = [number(name) for name in line.get("evicted", ())]
        before = [[number(name), text] for name, text in line.get("before", {}).items()]
        ended = [[number(name), why] for name, why in line.get("ended", {}).items()]
        seated = [part for seat, name in enumerate(line["seats"]) if name for part in (number(name), seat)]
        # An engine with a block table logs which blocks a request has, not only how many.
        tables = [[number(name), ids] for name, ids in zip(line["ids"], line.get("block_ids", ()), strict=False)]
        for name in line.get("ended", {}):
            lane.requests.pop(name, None)
        why = line["why"] if waiting else None
        more = max(0, line["queue"] - len(waiting))
        event = _lean(m=lane.number, q=new, w=waiting, y=why, v=evicted, b=before, e=ended, z=line["slots"], more=more)
        if line["kv_blocks"]:
            event["kv"] = [line["kv_blocks_used"], line["kv_blocks"]]
        if tables:
            event["kb"] = tables
        if line["kind"] == HELD:
            return {**event, "k": "state", "s": seated, "t": line["t"], "next": members[::FIELDS]}
        if line["kind"] == CHANGE:
            return {**event, "k": "state", "s": seated, "t": line["t"]}
        if any(line["texts"]):
            event["x"] = line["texts"]
        if seated != _stay(members, ended):
            event["s"] = seated
        return {**event, "n": line["n"], "t": line["t"], "d": line["dur"], "r": members}


def _stay(members: Sequence[int], ended: Sequence[Sequence[Any]]) -> list[int]:
    """Request and seat, by seat, of those members of a step that go on."""
    gone = {request for request, _ in ended}
    stay = sorted((members[k + 1], members[k]) for k in range(0, len(members), FIELDS) if members[k] not in gone)
    return [part for seat, request in stay for part in (request, seat)]


def _lean(**fields: Any) -> LaneEvent:
    """An object without what is empty."""
    lean = {name: value for name, value in fields.items() if value not in (None, [], "", 0) or name == "m"}
    return cast(LaneEvent, lean)
