"""Who goes first. It stands beside tensorrt_llm's model.py."""

from labserve.inflight import order, scheduler


class Fair(order.Order):
    def __init__(self):
        self.served = {}  # by tenant, what it has been served

    def arrived(self, job, waiting):
        """`job` comes to those who wait, which are `waiting`."""

    def line(self, waiting):
        """Those who wait, whoever is to join first in front; asked anew for each that joins."""
        return list(waiting)

    def joined(self, job, waiting):
        """`job` has come into the batch: its prompt will be computed."""

    def made(self, job, tokens):
        """`job` got so many new tokens."""


class Scheduler(scheduler.Scheduler):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.order = Fair()
