"""One tenant waits until no other tenant has a request."""

from labsched import scheduler

LEAST = 5


class Scheduler(scheduler.Scheduler):
    def line(self):
        return sorted(self.waiting, key=lambda request: request.tenant == "bob")


def shows(steps):
    """Requests are overtaken, all of one tenant, and by requests of others alone."""
    from labkit.predict.signs import overtakings, tenant

    found = list(overtakings(steps))
    slow = {tenant(name) for _, _, others in found for name in others}
    fast = {tenant(joined) for _, joined, _ in found}
    return [step for step, _, _ in found] if len(slow) == 1 and not slow & fast else []
