"""Half of the slots are never used."""

from labsched import scheduler

LEAST = 10
COUNTERS = {"labs_tokens_total": (None, 4.3)}


class Scheduler(scheduler.Scheduler):
    @property
    def places(self):
        return max(0, self.max_running // 2 - len(self.running))


def shows(steps):
    """The batch is closed at half of the slots, and no step has more requests."""
    if any(len(step["ids"]) > step["slots"] // 2 for step in steps):
        return []
    return [step for step in steps if step["why"] == "batch closed" and len(step["ids"]) == step["slots"] // 2]
