"""Nothing is wrong."""

from labsched import scheduler


class Scheduler(scheduler.Scheduler):
    pass
