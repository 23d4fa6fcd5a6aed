"""The load of a sick server (:mod:`labkit.predict.clinic`), sent to a real one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

from labkit.clients.base import Tell
from labkit.predict.clinic import RequestPhase
from labkit.records import RequestRecord
from labkit.workloads import load
from labkit.workloads.engine_stream import EngineStream
from labsched.recording import Arrival

IDS = range(5, 1000)  # tokens of any vocabulary
ANSWER_S = 300.0
LOOK_S = 0.02


def send_phases(endpoint: str, phases: Sequence[RequestPhase], tell: Tell | None = None) -> None:
    """Send the phases, one after the other. Raises LabError: a request failed, or had no answer in ANSWER_S."""
    before, total = 0, sum(len(phase.requests) for phase in phases)
    for phase in phases:

        def tell_of_all(answered: int, count: int, before: int = before) -> None:
            if tell:
                tell(before + answered, total)

        def ask(stream: Any, number: int, phase: RequestPhase = phase) -> RequestRecord:
            arrival = phase.requests[number]
            return _leave(endpoint, arrival) if arrival.cancelled else _ask(stream, arrival)

        load.closed_loop(endpoint, phase.in_flight, len(phase.requests), ask, ANSWER_S, tell_of_all, EngineStream)
        before += len(phase.requests)


def _ask(stream: EngineStream, arrival: Arrival) -> RequestRecord:
    rng = random.Random(arrival.name)
    ids = [rng.choice(IDS) for _ in range(arrival.prompt)]
    return stream.ask(ids, arrival.limit, id=arrival.name, tenant=arrival.tenant)


def _leave(endpoint: str, arrival: Arrival) -> RequestRecord:
    """Ask, and close the connection after some tokens."""
    with EngineStream(endpoint) as stream:
        record = _ask(stream, arrival)
        while record.tokens < arrival.made and not stream.ended(record, LOOK_S):
            stream.check()
        error = record.error
    record.end = record.end or time.monotonic()
    record.error = error  # a cancellation of our own is not an error
    return record
