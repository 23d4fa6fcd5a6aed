"""Requests join only when half of the slots are free.

A wrong answer of exercise 05a.
"""

from labsched import scheduler

LEAST = 10


class Scheduler(scheduler.Scheduler):
    @property
    def places(self):
        return 0 if len(self.running) > self.max_running // 2 else super().places


def shows(steps):
    """The batch is closed while more than half of the slots are taken, and never otherwise."""
    closed = [step for step in steps if step["why"] == "batch closed"]
    return closed if all(len(step["ids"]) > step["slots"] // 2 for step in closed) else []
