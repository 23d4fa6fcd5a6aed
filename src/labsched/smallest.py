"""A trace that refutes a scheduler, made smaller until nothing can be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from labsched.recording import Arrival


@dataclass(frozen=True)
class SmallTrace:
    """A trace, the figure of a policy on it, and that of another one, or the most that it may be.

    ``foul`` is why the policy was disqualified, or what the figure counts.
    """

    trace: Sequence[Arrival]
    figure: float
    reference: float
    foul: str = ""


Refute = Callable[[Sequence[Arrival]], SmallTrace | None]
Shrink = Callable[[Sequence[Arrival]], Iterator[list[Arrival]]]


def smallest(found: SmallTrace, refuted: Refute, smaller: Shrink | None = None, tries: int = 10_000) -> SmallTrace:
    """Shrink a trace step by step while it still refutes, until no smaller one does, or ``tries`` were tried."""
    left = tries
    while True:
        for trace in (smaller or _smaller)(found.trace):
            if not left:
                return found
            left -= 1
            if better := refuted(trace):
                found = better
                break
        else:
            return found


def _smaller(trace: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """The same trace with fewer requests, first with half of them; or with one that is simpler."""
    yield from fewer_requests(trace)
    yield from _simpler(trace)


def fewer_requests(trace: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """The same trace with fewer requests, first with half of them."""
    fewer = len(trace) // 2
    while fewer:
        for place in range(0, len(trace), fewer):
            yield [*trace[:place], *trace[place + fewer :]]
        fewer //= 2


def _simpler(trace: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """The same trace with one request that is simpler."""
    for place, one in enumerate(trace):
        for other in (
            replace(one, made=one.limit, word=False, why="length"),
            replace(one, prompt=one.prompt // 2),
            replace(one, limit=one.limit // 2, made=min(one.made, one.limit // 2)),
            replace(one, at=0.0),
            replace(one, priority=2),
            replace(one, tenant="a"),
        ):
            if other != one and other.prompt >= 1 and other.limit >= 1:
                whole = [*trace[:place], replace(other, word=other.made < other.limit), *trace[place + 1 :]]
                yield sorted(whole, key=lambda request: request.at)
