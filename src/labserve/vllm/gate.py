"""Static batching (`gpt_model_type=V1`) for an engine that has none: a gate before the engine's own scheduler."""

from collections.abc import Container, Sequence
from typing import Any


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
