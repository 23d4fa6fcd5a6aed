"""Who goes first. It stands beside tensorrt_llm's model.py."""

from labserve.inflight import order, scheduler


class Fair(order.Order):
    def __init__(self):
        self.served = {}  # by tenant, what it has been served

    def arrived(self, job, waiting):
        """`job` comes to those who wait, which are `waiting`."""
        tenants = {other.tenant for other in waiting}
        mine = self.served.setdefault(job.tenant, 0)
        if tenants and job.tenant not in tenants:
            self.served[job.tenant] = max(mine, min(self.served[tenant] for tenant in tenants))

    def line(self, waiting):
        """Those who wait, whoever is to join first in front; asked anew for each that joins."""
        return sorted(waiting, key=lambda job: self.served[job.tenant])

    def joined(self, job, waiting):
        """`job` has come into the batch: its prompt will be computed."""
        self.served[job.tenant] += len(job.prompt)

    def made(self, job, tokens):
        """`job` got so many new tokens."""
        self.served[job.tenant] += 2 * tokens


class Scheduler(scheduler.Scheduler):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.order = Fair()
