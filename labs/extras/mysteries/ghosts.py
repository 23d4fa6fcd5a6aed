"""A request whose client has gone is computed to its end.

The museum's server#6739: cancellation is a hand-over.
"""

from labsched import scheduler
from labsched.request import End

LEAST = 20


class Scheduler(scheduler.Scheduler):
    def cancel(self, request, error=None):
        if error or request not in self.running:
            super().cancel(request, error)
        else:
            request.end, request.streaming = End.CANCELLED, False


def shows(steps):
    """A request is in the batch that a line before says was cancelled."""
    gone, found = set(), []
    for step in steps:
        if gone & {*step["ids"]}:
            found.append(step)
        gone |= {name for name, why in step["ended"].items() if why == "cancelled"}
    return found
