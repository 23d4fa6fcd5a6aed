"""Requests whose clients have gone: they leave the batch and the queue, and do not join."""

import time
from collections.abc import Callable, Sequence
from typing import Any

ASK_S = 0.5  # seconds of a round of questions at least
FEW = 16  # waiting requests that are asked about in a round
MOST = 0.02  # share of the time for questions


class Clients:
    """Asks Triton whether clients are still there (vLLM's front end says so: `abort_requests`, vllm/v1/engine/core.py).

    A question is a message to the server and back, and the next step waits for it. So in rounds of half a second or
    more it asks about every request in the batch and a few waiting ones, spread over the round; and about each request
    once before it joins.

    Args:
        scheduler: its `running` and `waiting` requests are asked about.
        live: the requests that have not ended.
        cancel: ends a request whose client has gone.
    """

    def __init__(self, scheduler: Any, live: Any, cancel: Callable[[Any], None]) -> None:
        self._scheduler, self._live, self._cancel = scheduler, live, cancel
        self._round: list[Any] = []  # requests that are still to be asked about
        self._due = time.monotonic() + ASK_S  # when the next question is due, in monotonic seconds
        self._gap = ASK_S  # seconds between two questions
        self._next = 0  # where in the queue the next round begins
        self._asked: set[Any] = set()  # admitted requests that were asked about in this round

    def drop_gone(self) -> None:
        """Ask the questions that are due, and cancel the requests whose clients have gone."""
        began = time.monotonic()
        self._due = max(self._due, began - ASK_S)
        while self._due < began:
            if not self._round:
                self._begin()
            started = time.monotonic()
            if self._round and (request := self._round.pop()) in self._live:
                self._has_gone(request)
            self._due += max(self._gap, (time.monotonic() - started) / MOST)

    def _begin(self) -> None:
        """A new round."""
        self._asked.clear()
        waiting = list(self._scheduler.waiting)
        self._round = [*self._scheduler.running, *waiting[self._next : self._next + FEW]]
        self._next = self._next + FEW if self._next + FEW < len(waiting) else 0
        self._gap = ASK_S / max(1, len(self._round))

    def gone(self, admitted: Sequence[Any]) -> bool:
        """Whether clients of requests that would join have gone; such requests are cancelled."""
        new = [request for request in admitted if request not in self._asked]
        self._asked.update(new)
        cancelled = [self._has_gone(request) for request in new]
        return any(cancelled)

    def _has_gone(self, request: Any) -> bool:
        gone: bool = request.source.is_cancelled()
        if gone:
            self._cancel(request)
        return gone
