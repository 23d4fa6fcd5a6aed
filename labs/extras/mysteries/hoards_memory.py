"""Half of the KV cache is kept free.

Like the wrong answer of exercise 05b that promises everything.
"""

from labsched import scheduler

LEAST = 10
COUNTERS = {"labs_tokens_total": (None, 4.3)}


class Scheduler(scheduler.Scheduler):
    def reserve(self):
        return self.kv.blocks // 2 if self.running else 0


def shows(steps):
    """A request is refused for memory, because more blocks are in reserve than requests could soon need."""
    return [step for step in steps if step["because"].get("reserve", 0) > step["slots"]]
