"""Who joins the batch, and when. It stands beside tensorrt_llm's model.py."""

from labserve.inflight import scheduler


class Scheduler(scheduler.Scheduler):
    @property
    def places(self):
        """How many of those that wait may join the batch now; asked before every step.

        `self.running` are the requests in the batch, of which there may be `self.max_running`.
        """
        if self.running:
            return 0  # a batch that has begun runs to the end of its last member
        return self.max_running
