"""Each step takes a little longer than the one before.

As if something were searched that only grows.
"""

import time

from labsched import scheduler

LEAST = 20


class Scheduler(scheduler.Scheduler):
    sleep = staticmethod(time.sleep)
    count = 0

    def step(self, plan=None):
        step = super().step(plan)
        self.count += 1
        self.sleep(min(0.1, 0.0002 * self.count))
        return step


def shows(steps):
    """Steps of the second half end late, and most of them later than twice what was usual in the first quarter."""
    from labkit.predict.signs import lateness

    found = []
    for replica in {step["replica"] for step in steps}:
        own = [step for step in steps if step["replica"] == replica]
        quarter = len(own) // 4
        usual = sorted(lateness(step) for step in own[:quarter])[quarter // 2] if quarter else 0.0
        second = own[2 * quarter :]
        shown = [step for step in second if lateness(step) > max(0.03, 2 * usual)]
        found += shown if len(shown) > 0.8 * len(second) else []
    return found
