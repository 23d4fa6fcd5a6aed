"""A request that waits joins only together with others.

A wrong answer of exercise 04a, as a scheduler.
"""

from labsched import scheduler

LEAST = 10
COMPANY = 3


class Scheduler(scheduler.Scheduler):
    @property
    def places(self):
        return super().places if len(self.waiting) >= COMPANY or not self.running else 0


def shows(steps):
    """The batch is closed although slots are free, and only while the queue is short."""
    closed = [step for step in steps if step["why"] == "batch closed"]
    return closed if all(step["queue"] < COMPANY for step in closed) else []
