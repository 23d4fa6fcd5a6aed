"""Requests whose clients have gone: they leave the batch and the queue, and do not join."""

import time
from collections.abc import Sequence

from labsched.request import Request
from labsched.scheduler import Scheduler
from labserve.inflight.answers import Answers
from labserve.params import Refusal
from labserve.vllm.engine import VllmScheduler

ASK_S = 0.5  # seconds from one round of questions to the next
FEW = 16  # waiting requests that are asked about in a round


class Clients:
    """Asks Triton whether clients are still there (vLLM is told: `abort_requests`, vllm/v1/engine/core.py).

    A question is a message to the server and back, and the engine is idle meanwhile. So twice a second it asks about
    every request in the batch and a few of those that wait, and about each request once before it joins.
    """

    def __init__(self, scheduler: Scheduler | VllmScheduler, answers: Answers) -> None:
        self._scheduler, self._answers = scheduler, answers
        self._round = 0.0  # when the last round was
        self._next = 0  # where in the queue the next round begins
        self._asked: set[int] = set()  # the numbers of admitted requests that were asked about since then

    def drop_gone(self) -> None:
        """Once in `ASK_S` seconds, cancel the requests whose clients have gone."""
        if time.monotonic() - self._round < ASK_S:
            return
        self._round = time.monotonic()
        self._asked.clear()
        waiting = list(self._scheduler.waiting)
        for request in [*self._scheduler.running, *waiting[self._next : self._next + FEW]]:
            self._cancelled(request)
        self._next = self._next + FEW if self._next + FEW < len(waiting) else 0

    def gone(self, admitted: Sequence[Request]) -> bool:
        """Whether clients of requests that would join have gone; such requests are cancelled."""
        new = [request for request in admitted if request.number not in self._asked]
        self._asked.update(request.number for request in new)
        return sum(self._cancelled(request) for request in new) > 0

    def _cancelled(self, request: Request) -> bool:
        gone: bool = request.source.is_cancelled()
        if gone:
            self._scheduler.cancel(request)
            request.error = Refusal("the request was cancelled by its client")
            self._answers.finish(request)
        return gone
