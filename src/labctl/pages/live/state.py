"""Each model's state for the terminal: after the last line of its step log, and the steps before.

:mod:`labctl.pages.live.lines` fills in what a line leaves out, so a view is right from its first line on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from labctl.pages.live.lines import CHANGE, Instance, Line, why_waiting

STEPS = 600  # steps that a view remembers
ENDED = 64  # requests that have ended, with their texts
TEXT = 20_000  # characters of one answer
WINDOW_S = 2.0  # over which rates are taken; less, where the model has just begun,
SHORT_S = 0.05  # but no less than this


@dataclass(slots=True)
class _RequestView:
    """One request as far as the log shows it; ``ended`` is the reason of its end, None while it is live."""

    prompt: str = ""
    text: str = ""
    tokens: int = 0  # generated tokens that were seen
    ended: str | None = None


@dataclass
class ModelView:
    """One instance of one model."""

    model: str
    instance: str
    slots: int = 0
    seats: list[str] = field(default_factory=list)  # the request in each slot, "" for none
    batch: list[str] = field(default_factory=list)  # of the last step
    waiting: list[str] = field(default_factory=list)  # in the order in which they will be considered
    why: str = ""
    queue: int = 0
    kv_blocks: int = 0
    kv_blocks_used: int = 0
    blocks: dict[str, int] = field(default_factory=dict)  # of the KV cache, by owner
    requests: dict[str, _RequestView] = field(default_factory=dict)  # the live requests, then the latest ended ones
    steps: deque[Line] = field(default_factory=lambda: deque(maxlen=STEPS))
    now: float = 0.0  # when the last line was written, on the monotonic clock
    held: Line | None = None  # the step that waits for the clock: ids, waiting, why
    mode: str = "run"  # of the clock: run, pause, slow
    _log: Instance = field(default_factory=Instance)

    def feed(self, line: Line) -> None:
        """Take the next line of this instance's log."""
        line = self._log.whole(line)
        self.now = line["t"]
        for name, prompt in line.get("prompts", {}).items():
            self._request(name).prompt = prompt
        for name, text in line.get("before", {}).items():
            self._request(name).text = text
        if line["kind"] != CHANGE:
            self.steps.append(line)
            self.batch = list(line["ids"])
            self.blocks = {name: count for name, count in zip(line["ids"], line["blocks"], strict=True) if count}
            for name, made, text in zip(line["ids"], line["made"], line["texts"], strict=True):
                request = self._request(name)
                request.tokens += made
                request.text = (request.text + text)[-TEXT:]
            for name in line["waiting"]:
                self._request(name)
        for name, reason in line.get("ended", {}).items():
            self._request(name).ended = reason
            self.blocks.pop(name, None)
        self.seats, self.slots = list(line["seats"]), line["slots"]
        self.waiting, self.queue, self.why = list(line["waiting"]), line["queue"], why_waiting(line)
        # A step's own count is that of its beginning: if its last requests ended with it, nothing is left.
        self.kv_blocks = line["kv_blocks"]
        self.kv_blocks_used = line["kv_blocks_used"] if any(self.seats) else 0
        ended = [name for name, request in self.requests.items() if request.ended is not None]
        for name in ended[: max(0, len(ended) - ENDED)]:
            del self.requests[name]

    def rates(self, now: float | None = None) -> tuple[float, float]:
        """Steps and new tokens per second, over the last moments before ``now`` (default: the last line)."""
        end = self.now if now is None else now
        recent = [step for step in self.steps if step["t"] >= end - WINDOW_S]
        if not recent:
            return 0.0, 0.0
        span = max(end - recent[0]["t"] + recent[0]["dur"], SHORT_S)
        return len(recent) / span, sum(sum(step["made"]) for step in recent) / span

    def _request(self, name: str) -> _RequestView:
        if name not in self.requests or self.requests[name].ended is not None:  # a name can be used again
            self.requests.pop(name, None)
            self.requests[name] = _RequestView()
        return self.requests[name]


class LiveState:
    """All models of a stack. ``models`` is by (model, instance), in the order of their first lines."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, str], ModelView] = {}

    def of(self, model: str, instance: str) -> ModelView:
        """The view of one instance; a new one if it has none."""
        return self.models.setdefault((model, instance), ModelView(model, instance))

    def feed(self, lines: Iterable[Line]) -> None:
        """Take lines of the log, in order of time."""
        for line in lines:
            self.of(line["model"], line["instance"]).feed(line)
