"""Which request is admitted first. This file is next to tensorrt_llm's model.py."""

from labserve.inflight import order, scheduler


class Fair(order.Fair):
    pass


class Scheduler(scheduler.Scheduler):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.order = Fair()
