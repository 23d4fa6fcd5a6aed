"""The orders in which waiting requests are admitted, each a small class (vLLM: vllm/v1/core/sched/request_queue.py).

When memory runs out, the last running request in the same order is preempted, as in vLLM. No request starves: each
class says how often a request may be overtaken by later ones.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from copy import deepcopy
from typing import ClassVar, TypeVar

from labsched.request import Request

Kind = TypeVar("Kind", bound="Order")


class Order:
    """First come, first served (`fcfs`): no request is overtaken."""

    NOTES: ClassVar[Sequence[str]] = ("overtaken",)  # attributes for which a shallow copy is enough
    overtaken: dict[Request, int]  # by live request: how many later requests were admitted before it

    def __new__(cls: type[Kind], *_: object) -> Kind:  # a subclass need not call `__init__` for it
        order = super().__new__(cls)
        order.overtaken = defaultdict(int)
        return order

    def copy(self: Kind) -> Kind:
        """A copy for a plan: changes to it do not change this order."""
        copy = self.__class__.__new__(self.__class__)
        for name, value in vars(self).items():
            vars(copy)[name] = value.copy() if name in self.NOTES else deepcopy(value)
        return copy

    def arrived(self, request: Request, waiting: Sequence[Request]) -> None:
        """A request has arrived; `waiting` are the requests that waited before it."""

    def line(self, waiting: Sequence[Request]) -> list[Request]:
        """The waiting requests in order of admission; called again after each. `waiting` is in order of arrival."""
        return list(waiting)

    def victim(self, running: Sequence[Request]) -> Request:
        """The request to preempt when memory runs out; `running` is in order of admission."""
        return running[-1]

    def joined(self, request: Request, waiting: Sequence[Request]) -> None:
        """A request has been admitted; `waiting` are the requests that still wait."""
        overtaken, came = self.overtaken, request.came
        for other in waiting:
            if other.came < came:
                overtaken[other] += 1

    def made(self, request: Request, tokens: int) -> None:
        """A request got new tokens."""

    def ended(self, request: Request) -> None:
        """A request has ended, whichever way: nothing of it is kept."""
        self.overtaken.pop(request, None)


class ShortestFirst(Order):
    """The request with the fewest tokens left to compute, prompt and answer, is first: the shortest wait on average.

    Long requests would starve among many short ones. So a request that has been overtaken `PATIENCE` times is first,
    and no request is overtaken more often by later ones.
    """

    PATIENCE = 32

    def line(self, waiting: Sequence[Request]) -> list[Request]:
        return sorted(waiting, key=self._place)

    def victim(self, running: Sequence[Request]) -> Request:
        return max(running, key=self._place)

    def _place(self, request: Request) -> tuple[int, int]:
        if self.overtaken.get(request, 0) >= self.PATIENCE:
            return 0, request.came
        return len(request.prompt) + request.limit - request.cached, request.came


class Priority(Order):
    """The smallest priority is first, as in Triton: 1 is the most urgent. Among equals: first come, first served.

    A request counts as one level more urgent each time that it has been overtaken `PATIENCE` times. So a request of
    priority p is overtaken at most (p - 1) * `PATIENCE` times by later ones.
    """

    PATIENCE = 32

    def line(self, waiting: Sequence[Request]) -> list[Request]:
        return sorted(waiting, key=self._place)

    def victim(self, running: Sequence[Request]) -> Request:
        return max(running, key=self._place)

    def _place(self, request: Request) -> tuple[int, int]:
        return max(1, request.priority - self.overtaken.get(request, 0) // self.PATIENCE), request.came


class Fair(Order):
    """A virtual token counter for each tenant (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

    The tenant that has been served the least is first. A token of a prompt counts `PROMPT`, a new one `ANSWER`. The
    counter of a tenant that returns after a pause is raised to the lowest of the waiting tenants: it cannot save up.

    Two tenants that both wait all the time are never further apart than 2 * max(PROMPT * longest prompt, ANSWER *
    tokens that the batch can hold); so a request is overtaken by at most that many tokens of each other tenant. What
    a preemption makes the engine compute again is charged to no tenant.
    """

    PROMPT, ANSWER = 1, 2
    MOST_TENANTS = 1000  # absent tenants whose service is remembered
    NOTES = (*Order.NOTES, "served", "_charged")

    def __init__(self) -> None:
        self.served: dict[str | None, int] = defaultdict(int)  # by tenant, in counted tokens
        self._charged: set[Request] = set()  # requests whose prompt was counted for their tenant
        self._last: str | None = None  # the tenant that left the queue last

    def arrived(self, request: Request, waiting: Sequence[Request]) -> None:
        tenants = {other.tenant for other in waiting}
        if request.tenant in tenants:
            return
        least = min((self.served[tenant] for tenant in tenants), default=self.served[self._last])
        self.served[request.tenant] = max(self.served[request.tenant], least)
        if len(self.served) > self.MOST_TENANTS:  # counters that would be raised anyway need not be remembered
            keep = {name: count for name, count in self.served.items() if count > least or name in tenants}
            self.served = defaultdict(int, keep | {request.tenant: self.served[request.tenant]})

    def line(self, waiting: Sequence[Request]) -> list[Request]:
        queues: dict[str | None, deque[Request]] = defaultdict(deque)
        for request in waiting:
            queues[request.tenant].append(request)
        charged, price = self._charged, self.PROMPT
        heap = [(self.served[tenant], queue[0].came, tenant) for tenant, queue in queues.items()]
        heapq.heapify(heap)
        line = []
        while heap:
            served, _, tenant = heap[0]
            request = queues[tenant].popleft()
            line.append(request)
            if queues[tenant]:
                served += 0 if request in charged else price * len(request.prompt)
                heapq.heapreplace(heap, (served, queues[tenant][0].came, tenant))
            else:
                heapq.heappop(heap)
        return line

    def victim(self, running: Sequence[Request]) -> Request:
        return max(running, key=lambda request: (self.served[request.tenant], request.came))

    def joined(self, request: Request, waiting: Sequence[Request]) -> None:
        super().joined(request, waiting)
        if request not in self._charged:
            self.served[request.tenant] += self.PROMPT * len(request.prompt)
        self._charged.add(request)
        self._last = request.tenant

    def made(self, request: Request, tokens: int) -> None:
        self.served[request.tenant] += self.ANSWER * tokens

    def ended(self, request: Request) -> None:
        super().ended(request)
        self._charged.discard(request)


ORDERS: dict[str, type[Order]] = {"fcfs": Order, "shortest_first": ShortestFirst, "priority": Priority, "fair": Fair}


def order(word: str) -> Order:
    """The order of that name; "" is `fcfs`.

    Raises:
        ValueError: there is no such order.
    """
    name = word or "fcfs"
    if name not in ORDERS:
        raise ValueError(f"scheduling: '{word}' is not one of {', '.join(ORDERS)}")
    return ORDERS[name]()
