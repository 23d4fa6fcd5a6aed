"""Static batching (`gpt_model_type=V1`) for an engine that has none: a gate before the engine's own scheduler."""

from collections.abc import Callable, Container, Sequence
from typing import Any

from labsched.plan import Because


class Gate:
    """Lets requests in a batch at a time: the scheduler behind it sees no other.

    A batch is the first `size` requests that wait when the engine is empty. It is closed then, until the last of its
    requests has ended, however few are left and however many wait: that is all that static batching is.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._batch: set[str] = set()

    def admit(self, waiting: Sequence[Any], here: Container[str]) -> list[Any]:
        """The waiting requests that the scheduler may see; `here` has the ids of all that have not ended.

        >>> from types import SimpleNamespace
        >>> a, b, c = (SimpleNamespace(request_id=id) for id in "abc")
        >>> gate = Gate(2)
        >>> [request.request_id for request in gate.admit([a, b, c], {"a", "b", "c"})]
        ['a', 'b']
        >>> [request.request_id for request in gate.admit([c], {"b", "c"})]  # a has ended, and c waits for b
        []
        >>> [request.request_id for request in gate.admit([c], {"c"})]
        ['c']
        """
        self._batch = {id for id in self._batch if id in here}
        if not self._batch:
            self._batch = {request.request_id for request in waiting[: self._size]}
        return [request for request in waiting if request.request_id in self._batch]

    def closed(self, request: Any) -> bool:
        """Whether the batch is closed to a waiting request."""
        return request.request_id not in self._batch

    def through(self, scheduler: Any, schedule: Callable[[], Any]) -> Any:
        """Let vLLM's scheduler decide, by ``schedule``, about the requests that the gate admits and about no others."""
        queue = scheduler.waiting
        admitted = self.admit([*queue], scheduler.requests)
        queue.remove_requests(admitted)
        scheduler.waiting = type(queue)()
        for request in admitted:
            scheduler.waiting.add_request(request)
        try:
            return schedule()
        finally:
            for request in reversed([*scheduler.waiting]):  # found no memory, or were preempted
                queue.prepend_request(request)
            scheduler.waiting = queue

    def because(self, scheduler: Any, first: str) -> Because | None:
        """Why the first waiting request is not admitted, by its id, if it is not in the batch; else None."""
        if not self.closed(scheduler.requests[first]):
            return None
        return Because("no slot" if len(scheduler.running) >= scheduler.max_num_running_reqs else "batch closed")
