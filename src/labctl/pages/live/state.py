"""From the lines of the step log to what a viewer shows: seats, who waits, steps, blocks, texts, tokens per second.

Lines come from :class:`labctl.pages.live.tail.Tail`, or from a run that is over. A line says how things stand
(docs/develop/step-log.md), and :mod:`labctl.pages.live.lines` fills in what it leaves out, so a view is right from its
first line on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from labctl.pages.live.lines import CHANGE, Whole, why

STEPS = 600  # marks that a view remembers
ENDED = 64  # requests that have ended, with their texts
TEXT = 20_000  # characters of one answer
WINDOW_S = 2.0  # over which rates are taken; less, where the model has just begun,
SHORT_S = 0.05  # but no less than this


@dataclass(frozen=True, slots=True)
class Mark:
    """One request in one step."""

    id: str
    row: int  # its seat
    phase: str  # "p" prefill, "d" decode
    tokens: int  # that were computed for it
    made: int  # new ones that it got
    text: str
    blocks: int


@dataclass(frozen=True, slots=True)
class StepMarks:
    """One step as a column of the strip. Times are seconds of the monotonic clock; ``queue`` counts who waits."""

    n: int
    began: float
    ended: float
    marks: tuple[Mark, ...]
    joined: tuple[str, ...]
    evicted: tuple[str, ...]
    left: Mapping[str, str]  # who ended with it, and why
    waiting: tuple[str, ...]
    why: str
    queue: int
    kv_blocks_used: int
    more: Mapping[str, Any] = field(default_factory=dict)  # the model's own counts


@dataclass(slots=True)
class RequestView:
    """One request as far as the log has told of it. Times are seconds of the monotonic clock."""

    id: str
    prompt: str = ""
    text: str = ""
    tokens: int = 0  # new ones, those that were seen
    first_seen: float = 0.0
    joined: float | None = None
    first_token: float | None = None
    ended: float | None = None
    why: str = ""  # it ended
    waited_for: str = ""  # why it waited, when it last did
    seat: int = -1


@dataclass
class ModelView:
    """One instance of one model."""

    model: str
    instance: str
    slots: int = 0
    seats: list[str] = field(default_factory=list)  # who has each, "" for nobody
    batch: list[str] = field(default_factory=list)  # of the last step
    waiting: list[str] = field(default_factory=list)  # in the order in which they will be considered
    why: str = ""
    queue: int = 0
    kv_blocks: int = 0
    kv_blocks_used: int = 0
    blocks: dict[str, int] = field(default_factory=dict)  # of the KV cache, by owner
    requests: dict[str, RequestView] = field(default_factory=dict)  # the live ones, then those that ended last
    steps: deque[StepMarks] = field(default_factory=lambda: deque(maxlen=STEPS))
    now: float = 0.0  # when the last line was written
    held: dict[str, Any] | None = None  # the step that waits for the clock: ids, waiting, why, seats
    mode: str = "run"  # of the clock: run, pause, slow

    def feed(self, line: Mapping[str, Any]) -> StepMarks | None:
        """Take one whole line of this instance; the step that it tells of, None for a change without one."""
        self.now = line["t"]
        step = _step(line) if line["kind"] != CHANGE else None
        for name, prompt in line.get("prompts", {}).items():
            self._request(name).prompt = prompt
        for name, text in line.get("before", {}).items():
            self._request(name).text = text
        if step:
            self._take(step)
        for name in line.get("evicted", ()):
            self._request(name).seat = -1
        for name, reason in line.get("ended", {}).items():
            request = self._request(name)
            request.ended, request.why = self.now, reason
            self.blocks.pop(name, None)
        self.seats, self.slots = list(line["seats"]), line["slots"]
        self.waiting, self.queue, self.why = list(line["waiting"]), line["queue"], why(line)
        # A step's own count is that of its beginning: where its last requests ended with it, nothing is left.
        self.kv_blocks, self.kv_blocks_used = line["kv_blocks"], line["kv_blocks_used"] if any(self.seats) else 0
        self._forget()
        return step

    @property
    def live(self) -> list[RequestView]:
        """Those that have not ended."""
        return [request for request in self.requests.values() if request.ended is None]

    def rates(self, now: float | None = None) -> tuple[float, float]:
        """Steps and new tokens per second, over the last moments before ``now`` (default: the last line)."""
        end = self.now if now is None else now
        recent = [step for step in self.steps if step.ended >= end - WINDOW_S]
        if not recent:
            return 0.0, 0.0
        span = max(end - recent[0].began, SHORT_S)
        return len(recent) / span, sum(mark.made for step in recent for mark in step.marks) / span

    # -- one line ---------------------------------------------------------------------------------------------------

    def _take(self, step: StepMarks) -> None:
        self.steps.append(step)
        self.batch = [mark.id for mark in step.marks]
        self.blocks = {mark.id: mark.blocks for mark in step.marks if mark.blocks}
        for mark in step.marks:
            request = self._request(mark.id, step.began)
            request.joined = step.began if request.joined is None else request.joined
            request.seat = mark.row
            request.tokens += mark.made
            request.text = (request.text + mark.text)[-TEXT:]
            if mark.made and request.first_token is None:
                request.first_token = step.ended
        for name in step.waiting:
            self._request(name, step.began).waited_for = step.why

    def _request(self, name: str, at: float | None = None) -> RequestView:
        if name not in self.requests or self.requests[name].ended is not None:  # a name can be used again
            self.requests.pop(name, None)
            self.requests[name] = RequestView(name, first_seen=self.now if at is None else at)
        return self.requests[name]

    def _forget(self) -> None:
        ended = [name for name, request in self.requests.items() if request.ended is not None]
        for name in ended[: max(0, len(ended) - ENDED)]:
            del self.requests[name]


class State:
    """All models of a stack. ``models`` is by (model, instance), in the order in which they were first heard of."""

    def __init__(self) -> None:
        self._whole = Whole()
        self.models: dict[tuple[str, str], ModelView] = {}

    def of(self, model: str, instance: str) -> ModelView:
        """The view of one instance; made if there is none."""
        key = (model, instance)
        if key not in self.models:
            self.models[key] = ModelView(model, instance)
        return self.models[key]

    def feed(self, lines: Iterable[Mapping[str, Any]]) -> list[tuple[ModelView, StepMarks]]:
        """Take lines of the log, in order of time; the steps that are new, each with its model."""
        new = []
        for line in lines:
            view = self.of(line["model"], line["instance"])
            if step := view.feed(self._whole(line)):
                new.append((view, step))
        return new


def _step(line: Mapping[str, Any]) -> StepMarks:
    columns = zip(
        line["ids"],
        line["rows"],
        line["phase"],
        line["tokens"],
        line["made"],
        line["texts"],
        line["blocks"],
        strict=True,
    )
    return StepMarks(
        n=line["n"],
        began=line["t"] - line["dur"],
        ended=line["t"],
        marks=tuple(Mark(*column) for column in columns),
        joined=tuple(line.get("joined", ())),
        evicted=tuple(line.get("evicted", ())),
        left=dict(line.get("ended", {})),
        waiting=tuple(line["waiting"]),
        why=why(line),
        queue=line["queue"],
        kv_blocks_used=line["kv_blocks_used"],
        more={name: value for name, value in line.items() if name not in _KNOWN},
    )


_KNOWN = frozenset(
    "v n t dur model instance kind batch ids rows phase tokens made texts blocks waiting queue why because joined "
    "evicted ended seats slots slots_used kv_blocks kv_blocks_used prompts before prefill decode admitted "
    "preempted".split()
)
