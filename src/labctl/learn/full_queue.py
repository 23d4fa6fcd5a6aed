"""Requests to a batching engine whose clock stands still while they are sent: its steps then repeat exactly."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labctl.clock.clock import Clock, PauseLimit, State
from labctl.learn.outcome import Stuck
from labkit.clients import trtllm
from labkit.clients.base import InFlight
from labkit.clients.stream import TextStream
from labkit.clients.tensors import kind_of
from labkit.errors import LabError
from labkit.evidence.steplog import Step
from labkit.records import RequestRecord
from labkit.workloads import identity

LOOK_S = 0.01
THERE_S = 60.0  # a request has arrived by then, on however busy a machine
WRITTEN_S = 10.0  # a step is written down by then
HELD = PauseLimit(400.0, "would wait for ever")  # should nobody be there any more to let the clock go on
# Token ids of the prompt, tokens to generate; and parameters of the request, where it has any.
Request = tuple[Sequence[int], int] | tuple[Sequence[int], int, Mapping[str, Any]]


@dataclass(frozen=True)
class Engine:
    """The engine of the server that runs."""

    endpoint: str  # Triton's, for gRPC
    clock: Clock
    steps: Callable[[], Sequence[Step]]  # reads the engine's step log
    wait: Callable[[TextStream, RequestRecord], None]  # for one request to end

    def send_queued(
        self, requests: Sequence[Request], later: Sequence[tuple[int, Request]] = ()
    ) -> tuple[list[RequestRecord], list[Step]]:
        """Send all requests, in order, before the engine's first step; see ``Trial.send_queued``."""
        length = kind_of(self.endpoint, trtllm.MODEL, trtllm.OUTPUT_LENGTH)
        with TextStream(self.endpoint) as stream:  # one stream hands its requests over in order
            with self.held():
                records = [_send(stream, request, length) for request in requests]
                self.await_arrived(len(records), stream, records)
                done = 0
                for after, request in later:
                    if after > done:
                        self.clock.step(after - done, trtllm.MODEL)
                        done = after
                    there = self._wait_settled()
                    records.append(_send(stream, request, length))
                    self.await_arrived(there + 1, stream, records)
            for record in records:
                self.wait(stream, record)
        tokens = sum(request[1] for request in (*requests, *(request for _, request in later)))
        return records, self._steps_of(records, tokens)

    def in_turn(self, requests: Sequence[Request]) -> tuple[list[RequestRecord], list[Step]]:
        """Send each request when the one before it is answered; the answered requests, and the steps they were in."""
        length, records = kind_of(self.endpoint, trtllm.MODEL, trtllm.OUTPUT_LENGTH), []
        with TextStream(self.endpoint) as stream:
            for request in requests:
                records.append(_send(stream, request, length))
                self.wait(stream, records[-1])
        return records, self._steps_of(records, sum(request[1] for request in requests))

    @contextlib.contextmanager
    def stepping(self, requests: Sequence[Request]) -> Iterator[Stepped]:
        """Send all requests before the engine's first step; its clock then stands still but for the steps granted.

        When the block ends the clock goes on, and all requests are answered.
        """
        length = kind_of(self.endpoint, trtllm.MODEL, trtllm.OUTPUT_LENGTH)
        with TextStream(self.endpoint) as stream:
            with self.held():
                records = [_send(stream, request, length) for request in requests]
                self.await_arrived(len(records), stream, records)
                yield Stepped(records, self)
            for record in records:
                self.wait(stream, record)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """For the time of a block the engine begins no step but those that are granted one by one."""
        self.clock.pause(trtllm.MODEL)
        try:
            yield
        finally:
            self.clock.run(trtllm.MODEL)

    def await_arrived(self, count: int, client: InFlight, records: Sequence[RequestRecord] = ()) -> None:
        """Until so many requests are in the engine, by its own account.

        ``client``: the connection on which ``records`` were sent. Raises Stuck: they did not arrive. Raises LabError:
        one of them was refused, or the connection broke.
        """
        deadline = time.monotonic() + THERE_S
        while self._there() < count:
            if refused := next((record for record in records if record.error), None):
                raise LabError(f"{refused.model} answered with an error", refused.error)
            client.check()
            if time.monotonic() > deadline:
                raise Stuck(f"{self._there()} of {count} requests had arrived in the engine after {THERE_S:g} s")
            time.sleep(LOOK_S)

    def _wait_settled(self) -> int:
        """How many are in the engine when it waits for its next step, or has nothing to do."""
        deadline = time.monotonic() + THERE_S
        while time.monotonic() < deadline:
            if any(state.get("state") == "held" or not state.get("left", 1) for state in self._states()):
                return self._there()
            time.sleep(LOOK_S)
        raise Stuck("the engine has not come to its next step")

    def _states(self) -> list[State]:
        return self.clock.states(trtllm.MODEL)

    def _there(self) -> int:
        """Requests that are in the engine while its clock stands still."""
        return self.clock.held_requests(trtllm.MODEL)

    def _steps_of(self, records: Sequence[RequestRecord], tokens: int) -> list[Step]:
        """The steps of these requests. An answer is sent before its step is written: so that is waited for."""
        ids = {record.id for record in records}
        deadline = time.monotonic() + WRITTEN_S
        while True:
            theirs = [step for step in self.steps() if ids & {*step.ids}]
            if sum(sum(step.more["made"]) for step in theirs) >= tokens or time.monotonic() > deadline:
                return theirs
            time.sleep(LOOK_S)


@dataclass(frozen=True)
class Stepped:
    """Requests in an engine that computes a step when it is told to."""

    records: Sequence[RequestRecord]
    engine: Engine

    def step(self, count: int = 1) -> list[Step]:
        """Grant so many steps; all steps of these requests so far."""
        self.engine.clock.step(count, trtllm.MODEL)
        ids = {record.id for record in self.records}
        return [step for step in self.engine.steps() if ids & {*step.ids}]


def _send(stream: TextStream, request: Request, length: type[Any]) -> RequestRecord:
    ids, limit, *more = request
    return identity.send(stream, identity.Ids("", list(ids), limit), length, **(more[0] if more else {}))
