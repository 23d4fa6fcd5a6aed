"""A cancelled request's KV blocks are never free again."""

from labsched import scheduler

LEAST = 20


class Scheduler(scheduler.Scheduler):
    lost = 0

    def cancel(self, request, error=None):
        blocks = self.memory.claim(request) if request in self.running else 0
        super().cancel(request, error)
        self.lost = min(self.lost + blocks, self.kv.blocks // 2)  # the longest request still fits

    @property
    def blocks_used(self):
        return super().blocks_used + self.lost


def shows(steps):
    """More blocks are in use than the requests of the batch hold together, in this step and the one before."""
    found, before = [], 0
    for step in steps:
        lost = step["kv_blocks_used"] - sum(step["blocks"])
        if lost > 0 and before > 0:
            found.append(step)
        before = lost
    return found
