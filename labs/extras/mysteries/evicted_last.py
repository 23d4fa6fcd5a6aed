"""A preempted request goes to the end of the queue."""

from labsched import scheduler

LEAST = 2


class Scheduler(scheduler.Scheduler):
    def apply(self, plan):
        refused = super().apply(plan)
        for request in plan.victims:
            self.waiting.remove(request)
            self.waiting.append(request)
        return refused


def shows(steps):
    """A request that was never in the batch joins while a preempted one waits; no other is overtaken."""
    from labkit.predict.signs import overtakings

    if any(overtakings(steps)):
        return []
    evicted, been, found = set(), set(), []
    for step in steps:
        if evicted & {*step["waiting"]} and {*step["joined"]} - been:
            found.append(step)
        been |= {*step["ids"]}
        evicted = (evicted | {*step["evicted"]}) - {*step["joined"]}
    return found
