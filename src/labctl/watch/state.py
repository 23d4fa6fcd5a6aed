"""From the lines of the step log to what a viewer shows: seats, who waits, steps, blocks, texts, tokens per second.

Lines come from :class:`labctl.watch.tail.Tail`, or from a run that is over. A line says how things stand
(docs/step-log.md), so a view is right from its first line on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

STEPS = 600  # marks that a view remembers
ENDED = 64  # requests that have ended, with their texts
TEXT = 20_000  # characters of one answer
WINDOW_S = 2.0  # over which rates are taken


@dataclass(frozen=True, slots=True)
class Mark:
    """One request in one step."""

    id: str
    row: int  # its seat; -1 where the model has none
    phase: str  # "p" prefill, "d" decode, "" where a step is a whole execution
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
        """Take one line of this instance; the step that it tells of, None for a change without one."""
        self.now = line["t"]
        step = self._step(line) if line.get("kind", "step") != "change" else None
        for name, prompt in line.get("prompts", {}).items():
            self._request(name).prompt = prompt
        for name, text in line.get("before", {}).items():
            self._request(name).text = text
        if step:
            self._take(step)
        for name in line.get("evicted", ()):
            self._request(name).seat = -1
        for name, why in line.get("ended", {}).items():
            request = self._request(name)
            request.ended, request.why = self.now, why
            self.blocks.pop(name, None)
        if "slots" in line:
            self.slots = line["slots"]
        self.seats = list(line.get("seats", self._seats_of(step)))
        self.kv_blocks, self.kv_blocks_used = line.get("kv_blocks", self.kv_blocks), line.get("kv_blocks_used", 0)
        self._forget()
        return step

    @property
    def live(self) -> list[RequestView]:
        """Those that have not ended."""
        return [request for request in self.requests.values() if request.ended is None]

    def rates(self, now: float | None = None) -> tuple[float, float]:
        """Steps and new tokens per second, over the last moments before ``now`` (default: the last line)."""
        end = self.now if now is None else now
        recent = [step for step in self.steps if step.ended > end - WINDOW_S]
        made = sum(mark.made for step in recent for mark in step.marks)
        return len(recent) / WINDOW_S, made / WINDOW_S

    # -- one line ---------------------------------------------------------------------------------------------------

    def _step(self, line: Mapping[str, Any]) -> StepMarks:
        ids = line["ids"]

        def each(name: str, default: Any) -> Any:
            found = line.get(name)
            return found if isinstance(found, (list, str)) and len(found) == len(ids) else [default] * len(ids)

        columns = zip(
            ids, each("rows", -1), each("phase", ""), each("tokens", 0), each("made", 0), each("texts", ""),
            each("blocks", 0), strict=True,
        )  # fmt: skip
        why = line.get("why", "")
        return StepMarks(
            n=line.get("n", len(self.steps) + 1),
            began=line["t"] - line["dur"],
            ended=line["t"],
            marks=tuple(Mark(*column) for column in columns),
            joined=tuple(line.get("joined", ())),
            evicted=tuple(line.get("evicted", ())),
            left=dict(line.get("ended", {})),
            waiting=tuple(line.get("waiting", ())),
            why=why if isinstance(why, str) else ", ".join(sorted(set(why))),
            queue=line.get("queue", 0),
            kv_blocks_used=line.get("kv_blocks_used", 0),
            more={name: value for name, value in line.items() if name not in _KNOWN},
        )

    def _take(self, step: StepMarks) -> None:
        self.steps.append(step)
        self.batch = [mark.id for mark in step.marks]
        self.waiting, self.why, self.queue = list(step.waiting), step.why, step.queue
        self.blocks = {mark.id: mark.blocks for mark in step.marks if mark.blocks}
        for mark in step.marks:
            request = self._request(mark.id, step.began)
            if request.ended is not None:  # the name is used again
                request = self.requests[mark.id] = RequestView(mark.id, first_seen=step.began)
            request.joined = step.began if request.joined is None else request.joined
            request.seat = mark.row
            request.tokens += mark.made
            request.text = (request.text + mark.text)[-TEXT:]
            if mark.made and request.first_token is None:
                request.first_token = step.ended
        for name in step.waiting:
            self._request(name, step.began).waited_for = step.why

    def _request(self, name: str, at: float | None = None) -> RequestView:
        if name not in self.requests:
            self.requests[name] = RequestView(name, first_seen=self.now if at is None else at)
        return self.requests[name]

    def _seats_of(self, step: StepMarks | None) -> list[str]:
        """Where the model says nothing of seats: the rows of its batch."""
        if step is None:
            return self.seats
        rows = {mark.row: mark.id for mark in step.marks if mark.row >= 0}
        return [rows.get(row, "") for row in range(max([self.slots, *(row + 1 for row in rows)], default=0))]

    def _forget(self) -> None:
        ended = [name for name, request in self.requests.items() if request.ended is not None]
        for name in ended[: max(0, len(ended) - ENDED)]:
            del self.requests[name]


class State:
    """All models of a stack. ``models`` is by (model, instance), in the order in which they were first heard of."""

    def __init__(self) -> None:
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
            if step := view.feed(line):
                new.append((view, step))
        return new


_KNOWN = frozenset(
    "v n t dur model instance kind batch ids rows phase tokens made texts blocks waiting queue why joined evicted "
    "ended seats slots slots_used kv_blocks kv_blocks_used prompts before prefill decode admitted preempted".split()
)
