"""A scheduler of your own, which grows from exercise to exercise."""

from labsched import order, scheduler


class Scheduler(scheduler.Scheduler):
    def reserve(self):
        """How many blocks must stay free next to what a new request needs for its prompt and its next token.

        `self.running` are the requests in the batch, in order of admission; `self.waiting[0]` is the new request.
        Each has its tokens so far in `prompt` and `output`, and `limit` is how many it may generate.
        `self.kv.needed(tokens)` is the number of blocks for a number of tokens.
        """
        return len(self.running)  # one for each running request to grow into

    def victim(self):
        """The request to preempt, because the running requests need more blocks than there are."""
        return self.running[-1]  # the last one admitted: no earlier request is overtaken
