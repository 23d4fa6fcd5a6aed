"""The decision about the next step, made before anything changes.

The scheduler carries it out; the clock, the live page and the step log show it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from labsched.errors import Refusal
from labsched.request import Request
from labsched.step import MOST_NAMED

Copied = TypeVar("Copied")


class Because(NamedTuple):
    """Why the first request that waits is not admitted: the step log's word, and the numbers of the refusal, by name.

    "no KV block": `need` + `used` + `reserve` blocks are more than `blocks`. In a step with victims, `used` is what
    the batch would hold if they stayed. "no tokens": its prompt has `tokens`, and the step has `room` for fewer. The
    other reasons need no number that the batch does not show.
    """

    why: str | None = None  # None: no request waits, or it is not known
    numbers: Mapping[str, int] = {}


@dataclass(slots=True)
class Shares:
    """The tokens that a step computes for each request; the lists are in the order of the batch."""

    phase: str  # a letter each: p prefill, d decode
    tokens: list[int]
    drafted: list[int]  # of these tokens
    dropped: list[tuple[Request, int]] = field(default_factory=list)  # for prompts that the engine must finish


@dataclass(slots=True)
class StepPlan:
    """One step (vLLM: `SchedulerOutput`, vllm/v1/core/sched/output.py)."""

    victims: list[Request]  # are preempted: they leave the batch and are computed again later
    admitted: list[Request]  # leave the queue and join the batch
    batch: list[Request]
    waiting: list[Request]  # the others, in the order in which they will be considered
    shares: Shares
    because: Because

    @property
    def tokens(self) -> list[int]:
        """The tokens that the step computes for each request of the batch."""
        return self.shares.tokens

    def queue_fields(self) -> dict[str, Any]:
        """The step log's fields of the requests that wait."""
        return waiting_fields(self.waiting, self.because)


def waiting_fields(waiting: Sequence[Request], because: Because) -> dict[str, Any]:
    """The step log's fields of requests that wait: which, whose, why, and the numbers of the refusal."""
    if not waiting:
        return {"queue": 0}
    tenants = [request.tenant for request in waiting if request.tenant is not None]
    return {
        "waiting": [request.name for request in waiting[:MOST_NAMED]],
        "queue": len(waiting),
        "why": because.why,
        "because": because.numbers,
        "tenants": Counter(tenants) if tenants else None,  # an empty one takes 4 us
    }


def copy_of(state: Copied) -> Copied:
    """A new object with the same attributes, for a plan to change (`copy.copy` takes five times as long)."""
    copy = object.__new__(type(state))
    vars(copy).update(vars(state))
    return copy


def in_engine_order(requests: Iterable[Request]) -> list[Request]:
    """The requests in the order in which they joined the engine; last, the ones that have yet to join."""
    return sorted(requests, key=lambda request: request.joined or math.inf)


def share_out(
    batch: Sequence[Request],
    dropped: Sequence[Request],
    step_tokens: int,
    draft: int,
    left: Callable[[Request], int],
    drafts: Callable[[Request], int],
    share: Callable[[int, int, Sequence[int]], Sequence[int]],
) -> Shares:
    """Share a step's tokens: one for each request that decodes, and of the rest `share` to each prompt.

    Args:
        batch: the requests in the step.
        dropped: requests that have left the batch, whose prompts the engine must finish.
        step_tokens: the tokens that a step computes at most.
        draft: the draft tokens of a request at most, for which a step keeps room.
        left: the tokens that a request needs for its next one.
        drafts: how many draft tokens the engine will check.
        share: as `Scheduler.share`.

    Raises:
        Refusal: `share` hands out what it cannot.
    """
    phase = "".join("d" if request.decodes else "p" for request in batch)
    drafted = [drafts(request) if letter == "d" else 0 for request, letter in zip(batch, phase, strict=True)]
    shares = Shares(phase, [], drafted)
    decoding = phase.count("d") * (1 + draft)
    assert decoding <= step_tokens, f"{decoding} tokens in a step of {step_tokens}: more requests than slots?"
    prompts = [request for request, letter in zip(batch, phase, strict=True) if letter == "p"]
    order = in_engine_order([*dropped, *prompts])
    needs = [max(0, left(request)) for request in order]
    parts = list(share(step_tokens, decoding, needs))
    whole = len(parts) == len(needs) and all(0 <= part <= need for part, need in zip(parts, needs, strict=True))
    if not whole or decoding + sum(parts) > step_tokens or not (decoding or sum(parts) or not sum(needs)):
        raise Refusal(
            f"share returned {parts} for prompts that need {needs} tokens: each gets at most what it needs, "
            f"{step_tokens - decoding} tokens together, and a step computes something"
        )
    given = dict(zip(order, parts, strict=True))
    shares.dropped += [(request, given[request]) for request in dropped]
    shares.tokens += [given.get(request, 1 + count) for request, count in zip(batch, drafted, strict=True)]
    return shares
