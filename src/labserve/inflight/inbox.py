"""The inbox of ``tensorrt_llm``: from Triton's requests to requests in the scheduler's queue."""

import queue
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from labsched.policy import GATHER_S
from labsched.request import Request
from labserve.guard import Guard
from labserve.inflight.answers import Answers
from labserve.inflight.parse import parse_generation, rivals, schema, tenant_and_priority
from labserve.inflight.setup import AnySetup
from labserve.params import BadInput
from labserve.tensors import read_single
from labserve.triton import input_reader
from labserve.vllm.engine import VllmScheduler

CLOSE = object()


class Inbox:
    """Filled by Triton's thread (`put`), emptied by the scheduler's between two steps (`receive`).

    The requests of one execution arrive together. The queue belongs to both threads; all else belongs to the
    scheduler's, which sets `_broken` before it empties the queue for the last time.

    Its counterpart in vLLM V1 is the input queue of `EngineCoreProc` (vllm/v1/engine/core.py).
    """

    def __init__(
        self,
        setup: AnySetup,
        guard: Guard,
        answers: Answers,
        arrived: Callable[[Request], None],
        gather_s: float = GATHER_S,
    ) -> None:
        self._scheduler, self._shape, self._log_probs = setup.scheduler, setup.shape, setup.log_probs
        self._guard, self._answers, self._tell = guard, answers, arrived
        # The requests of an execution, or CLOSE alone, with the moment (monotonic seconds) at which they were put.
        self._queue: queue.SimpleQueue[tuple[float, Sequence[Any]]] = queue.SimpleQueue()
        self._put = 0.0  # that moment for the request that is taken now
        self._rest: deque[Any] = deque()  # requests of the same execution that are not taken yet
        self._gather_s = gather_s
        self._broken: Exception | None = None

    def put(self, sources: Sequence[Any]) -> list[None] | None:
        """Take Triton's requests. Returns what `execute` has to return: responses come later."""
        self._queue.put((time.monotonic(), sources))
        if self._broken:
            self._refuse_queued(self._broken)
        return None if self._answers.decoupled else [None] * len(sources)

    def close(self) -> None:
        """Let `receive` return False after the requests that are there."""
        self._queue.put((0.0, [CLOSE]))

    @contextmanager
    def served(self) -> Iterator[None]:
        """Surround the scheduler's loop. If it raises, every request ends with the error, and so does a later one."""
        try:
            yield
        except Exception as error:
            self._broken = error  # before the queue is emptied: what is put meanwhile is refused by `put`
            self._answers.refuse_all(error)
            self._refuse(self._rest, error)
            self._refuse_queued(error)

    def _refuse_queued(self, error: Exception) -> None:
        """Refuse the requests that the scheduler has not received."""
        with suppress(queue.Empty):
            while True:
                self._refuse(self._queue.get_nowait()[1], error)

    def _refuse(self, sources: Iterable[Any], error: Exception) -> None:
        for source in sources:
            if source is not CLOSE:
                self._guard.refuse(source, error)

    def _next(self, block: bool = True, timeout: float | None = None) -> Any:
        """The next of Triton's requests, or CLOSE. Raises queue.Empty."""
        if not self._rest:
            self._put, sources = self._queue.get(block, timeout)
            self._rest.extend(sources)
        return self._rest.popleft()

    def receive(self, wait: bool) -> bool:
        """Submit the requests that have arrived; with `wait`, sleep until there is one. False after `close`.

        Those that would keep an engine waiting, whose step in flight is over by then, are received after the next one.
        """
        deadline = time.monotonic() + self._scheduler.patience_s
        while True:
            try:
                item = self._next(wait)
            except queue.Empty:
                return True
            if item is CLOSE:
                return False
            self._take(item)
            if wait and self._scheduler.static:
                self._gather()
            wait = False
            if time.monotonic() > deadline:
                return True

    def _gather(self) -> None:
        """Wait for more requests, until the batch is full or the limit is over: none can join a static batch later."""
        deadline = time.monotonic() + self._gather_s
        while len(self._scheduler.waiting) < self._scheduler.max_running:
            try:
                item = self._next(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return
            if item is CLOSE:
                self.close()
                return
            self._take(item)

    def _take(self, source: Any) -> None:
        """Submit a request, or answer it with an error that names what is wrong."""
        number, read = self._answers.expect(source), input_reader(source)
        try:
            if read_single(read, "stop", False):
                self._stop(source.request_id())
                self._answers.confirm(number)
                return
            self._guard.check(source)
            request = parse_generation(source.request_id() or f"#{number}", read, self._shape)
            request.source, request.number = source, number
            parameters = source.parameters()
            request.tenant, request.priority = tenant_and_priority(parameters)
            request.schema = schema(parameters, able=isinstance(self._scheduler, VllmScheduler))
            request.rivals = rivals(parameters)
            if request.rivals is not None:
                request.scored = self._log_probs.open(request)
            self._scheduler.submit(request)
            self._arrived(request)
        except Exception as error:
            self._answers.refuse(number, error)

    def _arrived(self, request: Request) -> None:
        request.put = self._put
        self._tell(request)

    def _stop(self, id: str) -> None:
        """Cancel the live request to which its client gave that id.

        Raises BadInput if several have it: clients choose ids, and one must not end another's answer.
        """
        live = [*self._scheduler.running, *self._scheduler.waiting]
        chosen = [request for request in live if id and request.source.request_id() == id]
        if len(chosen) > 1:
            raise BadInput("stop", f"{len(chosen)} requests have the id {id}; none was stopped")
        for request in chosen:
            self._scheduler.cancel(request)
            self._answers.finish(request)
