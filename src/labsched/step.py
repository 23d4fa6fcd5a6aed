"""One step: what the scheduler returns, what a line of the step log holds, and what all readers of it take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from labsched.request import Request

NOT_RECORDED = "not recorded"  # in place of a reason that a log does not give
MOST_NAMED = 64  # of the waiting requests; how many there are is in `queue`


@dataclass(slots=True)
class Step:
    """One step (vLLM: `SchedulerOutput` and `ModelRunnerOutput`, vllm/v1/outputs.py).

    Its fields have the names and the meaning that they have in the log (docs/develop/step-log.md). A field that a log
    lacks is None, and a list or mapping is empty. Lists of numbers are in the order of `ids`. Times are seconds: of
    the monotonic clock, in a recording since its first arrival.
    """

    ids: Sequence[str] = ()
    began: float = 0.0
    over: float = 0.0
    model: str | None = None
    instance: str | None = None
    phase: str = ""
    tokens: Sequence[int] = ()
    made: list[int] = field(default_factory=list)
    cached: Sequence[int] = ()
    guessed: Sequence[int] = ()
    accepted: list[int] = field(default_factory=list)
    rows: Sequence[int] = ()
    blocks: Sequence[int] = ()
    block_ids: Sequence[Any] = ()
    joined: Sequence[str] = ()
    evicted: Sequence[str] = ()
    ended: Mapping[str, str] = field(default_factory=dict)
    waiting: Sequence[str] = ()
    queue: int | None = None
    why: str | Sequence[str] | None = None
    because: Mapping[str, int] | None = None
    tenants: Mapping[str, int] | None = None
    kv_blocks_used: int | None = None
    prefill: int | None = None  # requests without an output token before the step
    engine_us: int | None = None
    mask_us: int | None = None
    paced_us: int | None = None
    ahead_us: int | None = None
    in_vain: int | None = None
    more: dict[str, Any] = field(default_factory=dict)  # the other fields of its line
    busy: bool = False  # in a recording: the step before it left requests in the batch or in the queue
    # Only in a step that has just been computed, since a log does not hold requests:
    requests: list[Request] = field(default_factory=list)  # in the order of `ids`
    finished: list[Request] = field(default_factory=list)  # and those that the engine refused

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Step:
        """Read a line of the step log."""
        known = {name: line[name] for name in _LOGGED & line.keys()}
        more = {name: value for name, value in line.items() if name not in _LOGGED and name not in _TIMES}
        return cls(began=line["t"] - line["dur"], over=line["t"], more=more, **known)

    def to_json(self) -> dict[str, Any]:
        """The step as a line of the step log, without fields that it lacks."""
        return {"t": self.over, "dur": self.over - self.began, **self.logged(), **self.more}

    def logged(self) -> dict[str, Any]:
        """The fields of its line that do not differ from model to model."""
        values = zip(_IN_ORDER, _values_of(self), strict=True)
        return {name: value for name, value in values if value or type(value) is int}

    @property
    def batch(self) -> int:
        """How many requests are in it."""
        return len(self.ids)

    def add(self, request: Request, made: int, letter: str) -> None:
        """Note what came of the next of `requests`: how many new tokens, and whether it has ended."""
        self.made.append(made)
        if self.guessed:
            self.accepted.append(max(0, made - 1) if letter == "d" else 0)
        if request.end:
            self.finished.append(request)

    @property
    def produced(self) -> list[tuple[Request, list[int]]]:
        """The new tokens of each request that has some."""
        pairs = zip(self.requests, self.made, strict=True)
        return [(request, request.output[-made:]) for request, made in pairs if made]

    @property
    def found(self) -> Sequence[int]:
        """The tokens that each request found in the KV cache: none where a log lacks `cached`."""
        return self.cached or [0] * self.batch

    @property
    def whys(self) -> list[str]:
        """Why each of `waiting` waits. A line has one reason for all, or one each."""
        each = () if self.why is None or isinstance(self.why, str) else self.why
        given = [reason or NOT_RECORDED for reason in each]
        return (given + [self._why_all] * len(self.waiting))[: len(self.waiting)]

    @property
    def behind(self) -> str | None:
        """Why requests wait that the log counts and does not name; None: there are none."""
        return self._why_all if (self.queue or 0) > len(self.waiting) else None

    @property
    def _why_all(self) -> str:
        return self.why if self.why and isinstance(self.why, str) else NOT_RECORDED

    def renamed(self, names: Callable[[Iterable[str]], list[str]]) -> Step:
        """The same step with other names of its requests."""
        return replace(
            self,
            ids=names(self.ids),
            joined=names(self.joined),
            evicted=names(self.evicted),
            ended=dict(zip(names(self.ended), self.ended.values(), strict=True)),
            waiting=names(self.waiting),
        )

    @property
    def decides(self) -> dict[str, Any]:
        """The scheduler's decision and what came of it, without times."""
        return {
            "batch": [*self.ids],
            "phase": self.phase,
            "tokens": [*self.tokens],
            "made": self.made,
            "cached": [*self.found],
            "joined": [*self.joined],
            "preempted": [*self.evicted],
            "ended": sorted(self.ended),
            "waiting": [*self.waiting],
            "kv_blocks_used": self.kv_blocks_used,
        }


_TIMES = {"t", "dur", "batch"}
_NOT_LOGGED = {"began", "over", "more", "busy", "requests", "finished"}
_IN_ORDER = [one.name for one in fields(Step) if one.name not in _NOT_LOGGED]
_LOGGED = {*_IN_ORDER}
_values_of = attrgetter(*_IN_ORDER)
