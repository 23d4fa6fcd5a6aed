"""Who goes first: the orders in which those who wait join the batch, each a small class.

Only the order of joining is decided here; whoever is in the batch stays in it. Nobody starves: each class says how
often a request may be overtaken by ones that came later.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence

from labserve.inflight.job import Job


class Order:
    """First come, first served (`fcfs`): nobody is ever overtaken."""

    def arrived(self, job: Job, waiting: Sequence[Job]) -> None:
        """`job` comes to those who wait."""

    def line(self, waiting: Sequence[Job]) -> list[Job]:
        """Those who wait, in the order in which they would join; asked anew for each. `waiting` is as they came."""
        return list(waiting)

    def joined(self, job: Job, waiting: Sequence[Job]) -> None:
        """`job` has come into the batch; `waiting` stay outside."""
        for other in waiting:
            other.overtaken += other.came < job.came

    def made(self, job: Job, tokens: int) -> None:
        """`job` got new tokens."""


class ShortestFirst(Order):
    """Whoever has the fewest tokens left to compute, prompt and answer, goes first: the least waiting on average.

    Long requests would starve among many short ones, so whoever has been overtaken `PATIENCE` times goes first. No
    request is overtaken more than `PATIENCE` times by ones that came later.
    """

    PATIENCE = 32

    def line(self, waiting: Sequence[Job]) -> list[Job]:
        return sorted(waiting, key=self._place)

    def _place(self, job: Job) -> tuple[int, int]:
        if job.overtaken >= self.PATIENCE:
            return 0, job.came
        return len(job.prompt) + job.limit - job.cached, job.came


class Priority(Order):
    """The smallest priority goes first, as in Triton: 1 is the most urgent; among equals, first come, first served.

    Whoever has been overtaken `PATIENCE` times counts as one level more urgent, so that a request of priority p is
    overtaken at most (p - 1) * `PATIENCE` times by ones that came later.
    """

    PATIENCE = 32

    def line(self, waiting: Sequence[Job]) -> list[Job]:
        return sorted(waiting, key=lambda job: (max(1, job.priority - job.overtaken // self.PATIENCE), job.came))


class Fair(Order):
    """A virtual token counter for each tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

    The tenant that has been served the least goes first. A token of a prompt counts `PROMPT`, a new one `ANSWER`. A
    tenant that comes back after a pause is lifted to the least of those who wait: it cannot save up.

    Two tenants that both wait all the time are never further apart than 2 * max(PROMPT * longest prompt, ANSWER *
    tokens that the batch can hold); so a request is overtaken by at most that many tokens of each other tenant. What
    an eviction makes the engine compute again is charged to nobody.
    """

    PROMPT, ANSWER = 1, 2
    MOST_TENANTS = 1000  # whose service is remembered while they are away

    def __init__(self) -> None:
        self.served: dict[str, int] = defaultdict(int)  # by tenant, in counted tokens
        self._last = ""  # the tenant that left the queue last

    def arrived(self, job: Job, waiting: Sequence[Job]) -> None:
        tenants = {other.tenant for other in waiting}
        if job.tenant in tenants:
            return
        least = min((self.served[tenant] for tenant in tenants), default=self.served[self._last])
        self.served[job.tenant] = max(self.served[job.tenant], least)
        if len(self.served) > self.MOST_TENANTS:  # those that would be lifted anyway need not be remembered
            keep = {name: count for name, count in self.served.items() if count > least or name in tenants}
            self.served = defaultdict(int, keep | {job.tenant: self.served[job.tenant]})

    def line(self, waiting: Sequence[Job]) -> list[Job]:
        queues: dict[str, deque[Job]] = defaultdict(deque)
        for job in waiting:
            queues[job.tenant].append(job)
        heap = [(self.served[tenant], queue[0].came, tenant) for tenant, queue in queues.items()]
        heapq.heapify(heap)
        line = []
        while heap:
            served, _, tenant = heap[0]
            job = queues[tenant].popleft()
            line.append(job)
            if queues[tenant]:
                heapq.heapreplace(heap, (served + self._price(job), queues[tenant][0].came, tenant))
            else:
                heapq.heappop(heap)
        return line

    def joined(self, job: Job, waiting: Sequence[Job]) -> None:
        super().joined(job, waiting)
        self.served[job.tenant] += self._price(job)
        job.charged = True
        self._last = job.tenant

    def made(self, job: Job, tokens: int) -> None:
        self.served[job.tenant] += self.ANSWER * tokens

    def _price(self, job: Job) -> int:
        return 0 if job.charged else self.PROMPT * len(job.prompt)


ORDERS: dict[str, type[Order]] = {
    "fcfs": Order,
    "shortest_first": ShortestFirst,
    "priority": Priority,
    "fair": Fair,
}


def order(word: str) -> Order:
    """The order of that name; "" is `fcfs`.

    Raises:
        ValueError: there is no such order.
    """
    if (word or "fcfs") not in ORDERS:
        raise ValueError(f"scheduling: '{word}' is none of {', '.join(ORDERS)}")
    return ORDERS[word or "fcfs"]()
