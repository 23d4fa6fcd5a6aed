"""A request joins even with the last free KV block.

Exercise 05b, with nothing in reserve: another request is preempted soon.
"""

from labsched import scheduler

LEAST = 2
SOON = 12  # steps
COUNTERS = {"labs_preemptions_total": (0.0135, None)}


class Scheduler(scheduler.Scheduler):
    def reserve(self):
        return 0


def shows(steps):
    """A request is preempted soon after it has joined: nothing is kept free for the others to grow."""
    joined, found = {}, []
    for number, step in enumerate(steps):
        if any(number - joined.get(name, number - SOON) < SOON for name in step["evicted"]):
            found.append(step)
        joined.update(dict.fromkeys(step["joined"], number))
    return found
