"""One of two replicas takes three times as long."""

import os
import time

from labsched import scheduler

LEAST = 20
REPLICAS = 2


class Scheduler(scheduler.Scheduler):
    sleep = staticmethod(time.sleep)
    replica = os.environ.get("LABS_REPLICA", "")

    def step(self, plan=None):
        step = super().step(plan)
        if self.replica == "2":
            self.sleep(0.05)
        return step


def shows(steps):
    """The steps of a replica that usually takes twice as long as another one."""
    of = {}
    for step in steps:
        of.setdefault(step["replica"], []).append(step["dur"])
    usual = {name: sorted(times)[len(times) // 2] for name, times in of.items()}
    slow = {name for name, time in usual.items() if time > 2 * min(usual.values())}
    return [step for step in steps if step["replica"] in slow]
