"""Nothing is wrong."""

from labserve.inflight import scheduler


class Scheduler(scheduler.Scheduler):
    pass
