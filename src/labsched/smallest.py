"""A trace that refutes a scheduler, made smaller until nothing can be left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from labsched.recording import Arrival
from labsched.request import DEFAULT_PRIORITY


@dataclass(frozen=True)
class SmallTrace:
    """A trace, the scheduler's figure on it, and the most that it may be; ``counted``: what the figure counts."""

    trace: Sequence[Arrival]
    figure: float
    most: float
    counted: str = ""


Refute = Callable[[Sequence[Arrival]], SmallTrace | None]
Shrink = Callable[[Sequence[Arrival]], Iterator[list[Arrival]]]


def smallest(refutation: SmallTrace, refuted: Refute, smaller: Shrink | None = None, tries: int = 10_000) -> SmallTrace:
    """Shrink a trace step by step while it still refutes, until no smaller one does, or ``tries`` were tried."""
    left = tries
    while True:
        for trace in (smaller or _smaller)(refutation.trace):
            if not left:
                return refutation
            left -= 1
            if better := refuted(trace):
                refutation = better
                break
        else:
            return refutation


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
    for place, request in enumerate(trace):
        half = request.limit // 2
        for simpler in (
            replace(request, made=request.limit, word=False, why="length"),
            replace(request, prompt=request.prompt // 2),
            replace(request, limit=half, made=min(request.made, half)),
            replace(request, at=0.0),
            replace(request, priority=DEFAULT_PRIORITY),
            replace(request, tenant="a"),
        ):
            if simpler != request and simpler.prompt >= 1 and simpler.limit >= 1:
                consistent = replace(simpler, word=simpler.made < simpler.limit)
                yield sorted([*trace[:place], consistent, *trace[place + 1 :]], key=lambda arrival: arrival.at)
