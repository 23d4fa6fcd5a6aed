"""Requests to a batching engine whose clock stands still while they are sent: its steps then repeat exactly."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labctl.clock.clock import Clock, PauseLimit
from labctl.learn.outcome import Stuck
from labctl.learn.patience import Waiting
from labctl.runtimes.record import Endpoints
from labkit.clients import trtllm
from labkit.clients.base import InFlight
from labkit.clients.stream import TextStream
from labkit.clients.tensors import kind_of
from labkit.errors import LabError
from labkit.evidence.steplog import Step
from labkit.records import RequestRecord
from labkit.waiting import attempts
from labkit.workloads import identity

LOOK_S = 0.01
THERE_S = 60.0  # a request has arrived by then, on however busy a machine
WRITTEN_S = 10.0  # a step is written down by then
HELD = PauseLimit(400.0, "would wait for ever")  # should nobody be there any more to let the clock go on
# Token ids of the prompt, tokens to generate; and parameters of the request, where it has any.
Request = tuple[Sequence[int], int] | tuple[Sequence[int], int, Mapping[str, Any]]


class FullQueue(Waiting, ABC):
    """The ways of a trial to ask ``tensorrt_llm``. Raises as :meth:`wait`."""

    endpoints: Endpoints
    run_dir: Path

    @abstractmethod
    def steps(self, model: str = "") -> list[Step]:
        """What the models executed since the trial began, in order."""

    def send_queued(
        self, requests: Sequence[Request], later: Sequence[tuple[int, Request]] = ()
    ) -> tuple[list[RequestRecord], list[Step]]:
        """Send all requests, in order, before the engine's first step; the answered requests, and their steps.

        ``later``: other requests, each with the number of steps after which it arrives.
        """
        done = 0
        with self.stepping(requests) as run:
            for after, request in later:
                if after > done:
                    self._clock.step(after - done, trtllm.MODEL)
                    done = after
                run.send(request)
        return run.records, self._steps_of(run.records, [*requests, *(request for _, request in later)])

    def in_turn(self, requests: Sequence[Request]) -> tuple[list[RequestRecord], list[Step]]:
        """Send each request when the one before it is answered; the answered requests, and the steps they were in."""
        length, records = self._length(), []
        with TextStream(self.endpoints.grpc) as stream:
            for request in requests:
                records.append(_send(stream, request, length))
                self.wait(stream, records[-1])
        return records, self._steps_of(records, requests)

    @contextlib.contextmanager
    def stepping(self, requests: Sequence[Request]) -> Iterator[Stepped]:
        """Send all requests before the engine's first step; its clock then stands still but for the steps granted.

        When the block ends the clock goes on, and all requests are answered.
        """
        length = self._length()
        with TextStream(self.endpoints.grpc) as stream:  # one stream hands its requests over in order
            with self._held():
                records = [_send(stream, request, length) for request in requests]
                self._await_arrived(len(records), stream, records)
                yield Stepped(self, stream, length, records)
            for record in records:
                self.wait(stream, record)

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """For the time of a block the engine begins no step but those that are granted one by one."""
        self._clock.pause(trtllm.MODEL)
        try:
            yield
        finally:
            self._clock.run(trtllm.MODEL)

    def _await_arrived(self, count: int, client: InFlight, records: Sequence[RequestRecord]) -> None:
        """Until so many requests are in the engine, by its own account.

        ``client``: the connection on which ``records`` were sent. Raises Stuck: they did not arrive. Raises LabError:
        one of them was refused, or the connection broke.
        """
        for _ in attempts(THERE_S, LOOK_S):
            if (there := self._clock.held_requests(trtllm.MODEL)) >= count:
                return
            if refused := next((record for record in records if record.error), None):
                raise LabError(f"{refused.model} answered with an error", refused.error)
            client.check()
        raise Stuck(f"{there} of {count} requests had arrived in the engine after {THERE_S:g} s")

    @property
    def _clock(self) -> Clock:
        return Clock(self.run_dir, (trtllm.MODEL,), HELD)

    def _length(self) -> type[Any]:
        return kind_of(self.endpoints.grpc, trtllm.MODEL, trtllm.OUTPUT_LENGTH)

    def _steps_of(self, records: Sequence[RequestRecord], requests: Sequence[Request]) -> list[Step]:
        """The steps of these requests. An answer is sent before its step is written: so that is waited for."""
        tokens = sum(request[1] for request in requests)
        for _ in attempts(WRITTEN_S, LOOK_S):
            theirs = _with(records, self.steps(trtllm.MODEL))
            if sum(sum(step.more["made"]) for step in theirs) >= tokens:
                break
        return theirs


@dataclass(frozen=True)
class Stepped:
    """Requests in an engine that computes a step when it is told to."""

    queue: FullQueue
    stream: TextStream
    length: type[Any]  # of the tensor that says how many tokens to generate
    records: list[RequestRecord]

    def step(self, count: int = 1) -> list[Step]:
        """Grant so many steps; all steps of these requests so far."""
        self.queue._clock.step(count, trtllm.MODEL)
        return _with(self.records, self.queue.steps(trtllm.MODEL))

    def send(self, request: Request) -> None:
        """One request more, when the engine waits for its next step or has nothing to do. Raises Stuck."""
        clock = self.queue._clock
        for _ in attempts(THERE_S, LOOK_S):
            if any(state["state"] == "held" or not state.get("left", 1) for state in clock.states(trtllm.MODEL)):
                break
        else:
            raise Stuck("the engine has not come to its next step")
        there = clock.held_requests(trtllm.MODEL)
        self.records.append(_send(self.stream, request, self.length))
        self.queue._await_arrived(there + 1, self.stream, self.records)


def _with(records: Sequence[RequestRecord], steps: Sequence[Step]) -> list[Step]:
    """The steps in which one of these requests was."""
    ids = {record.id for record in records}
    return [step for step in steps if ids & {*step.ids}]


def _send(stream: TextStream, request: Request, length: type[Any]) -> RequestRecord:
    ids, limit, *more = request
    return identity.send(stream, identity.Ids("", list(ids), limit), length, **(more[0] if more else {}))
