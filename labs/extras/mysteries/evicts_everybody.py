"""When memory runs out, all requests but one are preempted."""

from labsched import scheduler


class Scheduler(scheduler.Scheduler):
    def _preempt(self):
        victims, because = super()._preempt()
        while victims and len(self.running) > 1:
            request = self.running.pop()
            self.memory.plan_to_end(request)
            self.waiting.appendleft(request)
            victims.append(request)
        return victims, because


def shows(steps):
    """Three or more requests are preempted before one step."""
    return [step for step in steps if len(step["evicted"]) >= 3]
