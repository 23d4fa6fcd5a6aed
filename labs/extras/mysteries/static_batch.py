"""A request joins only when the batch is empty.

The starter of exercise 05a; static batching as in lab 05.
"""

from labsched import scheduler

LEAST = 10
COUNTERS = {"labs_tokens_total": (None, 4.3)}


class Scheduler(scheduler.Scheduler):
    @property
    def places(self):
        return 0 if self.running else super().places


def shows(steps):
    """The scheduler says that the batch is closed, and requests join together, when no other one is left."""
    if any(step["joined"] and {*step["ids"]} - {*step["joined"]} for step in steps):
        return []
    return [step for step in steps if step["why"] == "batch closed"]
