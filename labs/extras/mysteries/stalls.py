"""The scheduler stands still for half a second at times."""

import time

from labsched import scheduler

LEAST = 3
EVERY = 64  # steps


class Scheduler(scheduler.Scheduler):
    sleep = staticmethod(time.sleep)
    count = 0

    def step(self, plan=None):
        step = super().step(plan)
        self.count += 1
        if self.count % EVERY == 0:
            self.sleep(0.5)
        return step


def shows(steps):
    """Some steps, and not most, end very long after their engine."""
    from labkit.predict.signs import lateness

    found = [step for step in steps if lateness(step) > 0.4]
    return found if len(found) < 0.1 * len(steps) else []
