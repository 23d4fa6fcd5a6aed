"""A scheduler of your own, which grows from exercise to exercise."""

from labsched import order, scheduler


class Fair(order.Order):
    def __init__(self):
        self.served = {}  # by tenant, what it has been served

    def arrived(self, request, waiting):
        """`request` has arrived; `waiting` are the requests that waited before it."""
        tenants = {other.tenant for other in waiting}
        mine = self.served.setdefault(request.tenant, 0)
        if tenants and request.tenant not in tenants:
            self.served[request.tenant] = max(mine, min(self.served[tenant] for tenant in tenants))

    def line(self, waiting):
        """The waiting requests, the next one first; called again after each admission."""
        return sorted(waiting, key=lambda request: self.served[request.tenant])

    def joined(self, request, waiting):
        """`request` has been admitted: its prompt will be computed. `waiting` are the requests that still wait."""
        self.served[request.tenant] += len(request.prompt)

    def made(self, request, tokens):
        """`request` got a number of new tokens."""
        self.served[request.tenant] += 2 * tokens


class Scheduler(scheduler.Scheduler):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.order = Fair()
