"""Requests to a batching engine that are all there before the first of them joins: steps then repeat exactly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labctl.errors import LabError
from labctl.measure.clients.stream import TextStream
from labctl.measure.clients.tensors import kind_of
from labctl.measure.evidence.steplog import Step
from labctl.measure.records import RequestRecord
from labctl.measure.workloads import identity
from labctl.measure.workloads.engine_stream import BLOCK
from labctl.trtllm import interface

TRIES = 5
WRITTEN_S = 10.0  # a step is written down by then, on however busy a machine
# Token ids of the prompt, tokens to generate; and parameters of the request, where it has any.
Request = tuple[Sequence[int], int] | tuple[Sequence[int], int, Mapping[str, Any]]
Steps = Callable[[], Sequence[Step]]
Wait = Callable[[TextStream, RequestRecord], None]


def run(
    endpoint: str, requests: Sequence[Request], blocks: int, steps: Steps, wait: Wait
) -> tuple[list[RequestRecord], list[Step]]:
    """Send all requests, in order, behind one that fills the whole KV cache: while that one runs nobody can join.

    Args:
        blocks: of the KV cache.
        steps: the engine's step log.
        wait: for one request to end.

    Returns:
        the answered requests (``text`` holds the new token ids), and the steps that they were in.

    Raises:
        LabError: an answer was an error, or the requests never came in time (a very busy machine).
    """
    length = kind_of(endpoint, interface.MODEL, interface.OUTPUT_LENGTH)
    first = identity.Ids("ahead", [1] * (BLOCK * (blocks - 1)), BLOCK)
    for _ in range(TRIES):
        with TextStream(endpoint) as stream:  # one stream hands its requests over in order
            ahead = identity.send(stream, first, length)
            records = [_send(stream, request, length) for request in requests]
            for record in (ahead, *records):
                wait(stream, record)
        theirs = _steps_of(records, steps, sum(request[1] for request in requests))
        if theirs and theirs[0].batch + theirs[0].more["queue"] == len(requests):  # who joined, and who still waits
            return records, theirs
    raise LabError(f"the requests were not all there within {TRIES} attempts", "the machine is very busy")


def run_in_turn(
    endpoint: str, requests: Sequence[Request], steps: Steps, wait: Wait
) -> tuple[list[RequestRecord], list[Step]]:
    """Send each request when the one before it is answered; the answered requests, and the steps they were in."""
    length, records = kind_of(endpoint, interface.MODEL, interface.OUTPUT_LENGTH), []
    with TextStream(endpoint) as stream:
        for request in requests:
            records.append(_send(stream, request, length))
            wait(stream, records[-1])
    return records, _steps_of(records, steps, sum(request[1] for request in requests))


def _send(stream: TextStream, request: Request, length: type[Any]) -> RequestRecord:
    ids, limit, *more = request
    return identity.send(stream, identity.Ids("", list(ids), limit), length, **(more[0] if more else {}))


def _steps_of(records: Sequence[RequestRecord], steps: Steps, tokens: int) -> list[Step]:
    """The steps of these requests. An answer is sent before its step is written: so that is waited for."""
    ids = {record.id for record in records}
    deadline = time.monotonic() + WRITTEN_S
    while True:
        theirs = [step for step in steps() if ids & {*step.ids}]
        if sum(sum(step.more["made"]) for step in theirs) >= tokens or time.monotonic() > deadline:
            return theirs
        time.sleep(0.02)
