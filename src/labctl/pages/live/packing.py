"""A run's events as columns, for a file that holds all of them: a step has only what differs from the step before it.

With 100,000 steps the file has a fifth of the bytes, and a browser opens it in a fifth of the time. ``Store.open`` in
``page/store.js`` reads it.
"""

from __future__ import annotations

from typing import Any

from labctl.pages.live.events import LaneEvent
from labctl.pages.live.feed import FIELDS

KEPT = ("r", "w", "y", "more", "e", "v", "b", "kv", "kb", "s", "z")  # fields of a step that are written if they change
MICROSECONDS = 1e6


class _Lane:
    """One lane's steps: times in whole microseconds since the step before, and each kept field's changes."""

    def __init__(self, event: LaneEvent) -> None:
        self.head = {name: value for name, value in event.items() if name in ("name", "model")}
        self.ends: list[int] = []
        self.took: list[int] = []
        self.changes: dict[str, list[Any]] = {name: [] for name in ("n", *KEPT)}
        self.now: LaneEvent | None = None  # how things stand, where something changed after the last step
        self._last: dict[str, Any] = {}
        self._end = 0

    def take(self, step: LaneEvent) -> None:
        self.now = None
        place, end = len(self.ends), round(step["t"] * MICROSECONDS)
        self.ends.append(end - self._end)
        self.took.append(round(step["d"] * MICROSECONDS))
        self._end = end
        self._change(place, "n", step["n"] - place)
        for name in KEPT:
            self._change(place, name, step.get(name))

    def _change(self, place: int, name: str, value: Any) -> None:
        if value != self._last.get(name):
            self.changes[name] += (place, value)
            self._last[name] = value

    def columns(self) -> dict[str, Any]:
        """The lane as JSON knows it; a field's changes are its place and value in turn."""
        columns = {**self.head, "t": self.ends, "d": self.took}
        columns |= {name: changes for name, changes in self.changes.items() if changes}
        if self.now:
            columns["now"] = self.now
        return columns


class Packing:
    """Takes the events of :class:`~labctl.pages.live.feed.Feed` in order. Between two steps it keeps only the last."""

    def __init__(self) -> None:
        self._lanes: list[_Lane] = []
        self._requests: list[list[Any]] = []  # lane, id, label, name
        self._texts: list[list[str]] = []  # for each request, its new text in each of its steps
        self.texts = False  # whether any request has one

    def take(self, event: LaneEvent) -> None:
        """Take the next event."""
        if event.get("k") == "model":
            self._lanes.append(_Lane(event))
            return
        for number, id, label, name in event.get("q", ()):
            assert number == len(self._requests)
            self._requests.append([event["m"], id, label, name])
            self._texts.append([])
        if "r" not in event:
            self._lanes[event["m"]].now = event
            return
        self._lanes[event["m"]].take(event)
        members = event["r"][::FIELDS]
        self.texts = self.texts or "x" in event
        before = {number: self._unseen(number, text) for number, text in event.get("b", ())}
        for number, text in zip(members, event.get("x") or [""] * len(members), strict=True):
            self._texts[number].append(before.get(number, "") + text)

    def _unseen(self, number: int, text: str) -> str:
        """The part of a request's text that came while no texts were logged."""
        logged = "".join(self._texts[number])
        if not text.startswith(logged):  # the model has forgotten the beginning
            self._texts[number] = [""] * len(self._texts[number])
            return text
        return text[len(logged) :]

    def document(self) -> dict[str, Any]:
        """Lanes; requests as [lane, id, label, name]; each text and the lengths of its parts, where there are texts.

        Lengths are in UTF-16 units, as JavaScript counts.
        """
        document: dict[str, Any] = {"lanes": [lane.columns() for lane in self._lanes], "requests": self._requests}
        if self.texts:
            document["texts"] = [["".join(parts), list(map(_units, parts))] for parts in self._texts]
        return document


def _units(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
