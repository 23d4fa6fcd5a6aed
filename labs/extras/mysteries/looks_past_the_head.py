"""If the first request does not fit, a later one joins.

A wrong answer of exercise 08b: large requests wait as long as small ones come.
"""

from labsched import scheduler

LEAST = 5


class Scheduler(scheduler.Scheduler):
    def line(self):
        free = self.kv.blocks - self.blocks_used - self.reserve()
        return sorted(self.waiting, key=lambda request: self.memory.need(request) > free)


def shows(steps):
    """Requests are overtaken, and only by requests that need fewer blocks."""
    from labkit.predict.signs import overtakings

    need = {}
    for step in steps:
        for name, blocks in zip(step["ids"], step["blocks"]):
            need.setdefault(name, blocks)
    found = list(overtakings(steps))
    pairs = [(one, other) for _, one, others in found for other in others if other in need]
    return [step for step, _, _ in found] if all(need[one] < need[other] for one, other in pairs) else []
