"""A cancelled request's slot is never free again.

The museum's iterative-slots, in this scheduler.
"""

from labsched import scheduler

LEAST = 20


class Scheduler(scheduler.Scheduler):
    lost = 0

    def cancel(self, request, error=None):
        ran = request in self.running
        super().cancel(request, error)
        if ran and self.lost < self.max_running - 2:
            self.lost += 1
            self.slots.take(("lost", self.lost), request.name)

    @property
    def places(self):
        return max(0, super().places - self.lost)


def shows(steps):
    """A slot is held by a request that is not in the batch."""
    return [step for step in steps if {*step["seats"]} - {"", *step["ids"]}]
