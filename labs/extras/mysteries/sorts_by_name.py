"""The queue is sorted by the names of the requests."""

from labsched import scheduler

LEAST = 5


class Scheduler(scheduler.Scheduler):
    def line(self):
        return sorted(self.waiting, key=lambda request: request.id)


def shows(steps):
    """Requests are overtaken, and only by names that come before theirs in the alphabet."""
    from labkit.predict.signs import overtakings

    found = list(overtakings(steps))
    return [step for step, _, _ in found] if all(one < min(others) for _, one, others in found) else []
