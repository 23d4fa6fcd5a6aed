"""The events that the live page receives. ``k`` is an event's kind; a step has no ``k``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

from labctl.pages.live.routes import RouteEvent


class LaneEvent(TypedDict, total=False):
    """A lane opens (``k``: model), a step of it, or how it stands between two steps (``k``: state).

    Requests are numbers, which ``q`` introduces as [number, id, label, name]. Fields that are empty are left out.
    """

    k: Literal["model", "state"]
    name: str
    model: str
    tells: bool  # the log says when a request leaves its slot
    m: int  # the lane
    n: int
    t: float  # end, in seconds of the log's clock
    d: float  # duration
    r: list[int]  # five numbers for each member: request, slot, 1 for prefill, new tokens, KV blocks
    x: Sequence[str]  # the members' texts
    w: list[int]  # the waiting requests, in order,
    y: str | Sequence[str]  # why, one for all or one for each,
    more: int  # and how many others wait
    q: list[list[Any]]
    b: list[list[Any]]  # [request, the text that it had before]
    e: list[list[Any]]  # [request, why it ended]
    v: list[int]  # preempted requests
    kv: list[int]  # KV blocks: used, of all
    kb: list[list[Any]]  # [request, the ids of its KV blocks]
    z: int  # slots
    s: list[int]  # request, slot, ...: after the step, where r and e do not say it
    next: list[int]  # requests of the step that waits for the clock


class AskEvent(TypedDict):
    """A request of the page's own: when it is sent, as its answer grows, at its end."""

    k: Literal["ask"]
    n: str
    name: NotRequired[str]  # in the step log
    called: NotRequired[str]  # by a person
    model: NotRequired[str]
    prompt: NotRequired[str]
    at: NotRequired[float]
    state: NotRequired[str]
    text: NotRequired[str]
    first: NotRequired[float]  # seconds to the first response
    error: NotRequired[str]


class ClockEvent(TypedDict):
    """How the clock is set; ``until`` in seconds since the epoch."""

    k: Literal["clock"]
    until: float | None
    paused: bool
    slow: float


class ModelCounts(TypedDict):
    """A model that did something: facts as (what, Triton's count, the model's), and why the two differ."""

    model: str
    facts: list[tuple[str, str, str]]
    notes: list[str]


class CountersEvent(TypedDict):
    k: Literal["counters"]
    rows: list[ModelCounts]


class _ChatEvent(TypedDict):
    k: Literal["chat"]
    address: str | None


class TroubleEvent(TypedDict):
    k: Literal["trouble"]
    words: str | None  # what is wrong with the stack


class HeadEvent(TypedDict, total=False):
    """The first event that a page gets."""

    k: Literal["head"]
    title: str
    send: list[str]  # models that can be asked
    into: Mapping[str, str]  # for an ensemble, the step that the page shows
    models: list[str]
    limit: str  # why a pause ends by itself
    chosen: str
    note: str  # what the page shows in place of a clock, if there is no clock
    chat: str | None  # the address of the stack's chat page
    trouble: str | None


Event = LaneEvent | AskEvent | ClockEvent | CountersEvent | _ChatEvent | TroubleEvent | RouteEvent | HeadEvent
