"""The scheduler of models whose memory is slots: GPT-2, CodeGen and a model that only waits.

It has what a driver (labserve/driver.py) asks of labsched's `Scheduler`, and computes a step as plainly as can be.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from labsched.plan import Because, Shares, StepPlan
from labsched.slots import Slots
from labsched.step import Step

LOOK_AROUND = 16  # steps between two questions whether a client is still there; each is a message to the server


@dataclass(slots=True, eq=False, kw_only=True)
class SlotRequest:
    """What a scheduler, a driver and a recorder know of a request; its kinds add how it is computed.

    Each kind has `ids`, its tokens with the prompt's first (none where its words are no tokens), `output`, a part of
    the answer for each token, and `made`, how many these are.
    """

    request: Any = None  # Triton's
    id: str = ""  # what its client calls it
    name: str = ""  # in the step log
    tenant: str | None = None
    finished: bool = False
    why: str | None = None  # it has finished, in the step log's word: "length", "stop" (the end token), "failed"
    error: Exception | None = None  # that it is answered with
    piece: str = ""  # the text that the last step has made (which may be none yet of a character),
    outputs: dict[str, str] = field(default_factory=dict)  # and the outputs beside it, such as `logprobs`
    running: bool = False  # it holds a slot
    cut: bool = False  # a response could not be sent (labserve.request.ServedRequest)

    @property
    def source(self) -> Any:
        """Triton's request, as labsched's `Request` calls it."""
        return self.request

    def finish(self, why: str) -> None:
        """End it; `why` is the step log's word."""
        self.finished, self.why = True, why

    def fail(self, error: Exception) -> None:
        """End it without a token."""
        self.error = error
        self.finish("failed")


class SlotEngine:
    """What computes a batch that is named to it."""

    def tokens(self, batch: Sequence[Any]) -> list[int]:
        """How many tokens the next step computes for each of these."""
        raise NotImplementedError

    def step(self, batch: Sequence[Any]) -> dict[str, Any]:
        """Compute a step: each request has one more part of its answer, or has failed. Returns fields of its line."""
        raise NotImplementedError

    def join(self, request: Any) -> None:
        """A request that waited gets a slot."""

    def release(self, request: Any) -> None:
        """Forget what is kept of a request; harmless where nothing is."""


class SlotScheduler:
    """Requests get the free slots in the order of their arrival, and everyone in a slot is in each step.

    A model.py that chooses its batches itself calls `join` and `evict`, and names the batch (`plan_of`).

    Args:
        engine: computes the steps.
        count: the number of slots.
        queues: whether requests can wait for a slot; else the step log says nothing of a queue.
        asks: whether steps ask after clients now and then; else the driver does.
    """

    static = False
    ahead = False
    in_flight = 0
    patience_s = math.inf

    def __init__(self, engine: SlotEngine, count: int, queues: bool = True, asks: bool = False) -> None:
        self.engine, self.max_running = engine, count
        self.slots = Slots(count)
        self.waiting: deque[Any] = deque()
        self.running: list[Any] = []
        self._queues, self._asks = queues, asks
        self._joined: list[str] = []  # names, since the last step, and so below
        self._evicted: list[str] = []

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, request: Any) -> None:
        """Put a request into the queue."""
        self.waiting.append(request)

    def join(self, request: Any) -> None:
        """Give a request that waits a slot."""
        self.waiting.remove(request)
        self.running.append(request)
        self._joined.append(request.name)
        request.running = True
        self.slots.take(request, request.name)
        self.engine.join(request)

    def evict(self, request: Any) -> None:
        """Take the slot of a request: it waits again, and will be computed again."""
        self.leave(request)
        self.waiting.append(request)
        self._evicted.append(request.name)

    def leave(self, request: Any) -> None:
        """Free all that a request holds; harmless when it has left."""
        for place in (self.running, self.waiting):
            if request in place:
                place.remove(request)
        request.running = False
        self.slots.free(request)
        self.engine.release(request)

    def forget(self, request: Any) -> None:
        """As `leave`, and no line of the step log says that it was there."""
        self.leave(request)
        if request.name in self._joined:
            self._joined.remove(request.name)

    def cancel(self, request: Any, error: Exception | None = None) -> None:
        """Take a request out of the queue or its slot, at once. With an `error` it has failed."""
        if error:
            request.fail(error)
        else:
            request.finish("cancelled")
        self.leave(request)

    def abandon(self, error: Exception) -> list[Any]:
        """A step has failed: every request ends with `error`."""
        requests = [*self.running, *self.waiting]
        for request in requests:
            self.cancel(request, error)
        return requests

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute."""
        return not self.running and not self.waiting

    # -- steps --------------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Plan a step of all requests in slots; those that have waited longest get the free slots."""
        free = self.max_running - len(self.running)
        admitted = [*islice(self.waiting, free)]
        return self.plan_of([*self.running, *admitted], [*islice(self.waiting, len(admitted), None)], admitted)

    def plan_of(self, batch: list[Any], waiting: Sequence[Any] = (), admitted: Sequence[Any] = ()) -> StepPlan:
        """Plan a step of this batch. `admitted` are in it and join with it; `waiting` could have been in it."""
        return StepPlan([], [*admitted], batch, [*waiting], Shares("", [], []), Because("no slot" if waiting else None))

    def step(self, plan: StepPlan) -> Step:
        """Carry out a plan, compute one step, and let go of the requests that end with it."""
        began = time.monotonic()
        for request in plan.admitted:
            self.join(request)
        planned: list[Any] = [*plan.batch]
        batch = [request for request in planned if not request.finished]  # one may have ended where it joined
        phase = "".join("d" if request.made else "p" for request in batch)
        before = [request.made for request in batch]
        step = Step(
            [request.name for request in batch],
            began,
            phase=phase,
            tokens=self.engine.tokens(batch),
            rows=self.slots.places(batch),
            joined=self._joined,
            evicted=self._evicted,
            prefill=phase.count("p"),
            **(plan.queue_fields() if self._queues else {}),
            requests=batch,
        )
        self._joined, self._evicted = [], []
        if batch:
            computing = time.monotonic()
            step.more = self.engine.step(batch)
            step.engine_us = round((time.monotonic() - computing) * 1e6)
            step.tokens = step.more.pop("tokens", step.tokens)
        step.made = [request.made - count for request, count in zip(batch, before, strict=True)]
        for request in planned:
            if self._asks and not request.finished and request.made % LOOK_AROUND == 2:
                _ask_after(request)
            if request.finished:
                self.leave(request)
                step.finished.append(request)
        return step


def _ask_after(request: Any) -> None:
    """End a request whose client has gone."""
    try:
        if request.source.is_cancelled():
            request.finish("cancelled")
    except Exception as error:
        request.fail(error)
