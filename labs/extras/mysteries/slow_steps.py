"""Every step ends late: the host does something else."""

import time

from labsched import scheduler

LEAST = 20
COUNTERS = {"labs_inter_token_latency_seconds": (0.045, None)}


class Scheduler(scheduler.Scheduler):
    sleep = staticmethod(time.sleep)

    def step(self, plan=None):
        step = super().step(plan)
        self.sleep(0.03)
        return step


def shows(steps):
    """Most steps, early and late ones, end well after their engine."""
    from labkit.predict.signs import lateness

    found = [step for step in steps if lateness(step) > 0.02]
    early = sum(lateness(step) > 0.02 for step in steps[: len(steps) // 4])
    return found if len(found) > 0.8 * len(steps) and early > 0.8 * (len(steps) // 4) else []
