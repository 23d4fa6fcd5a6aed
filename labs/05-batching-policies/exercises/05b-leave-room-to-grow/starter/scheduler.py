"""Memory for the batch. It stands beside tensorrt_llm's model.py."""

from labserve.inflight import scheduler


class Scheduler(scheduler.Scheduler):
    def reserve(self):
        """How many blocks must stay free beside those that a newcomer needs for its prompt and its next token.

        `self.running` are the requests in the batch, the first come in front; `self.waiting[0]` is the newcomer.
        Of each, `prompt` and `output` are the tokens so far and `limit` is how many it may generate;
        `self.kv.needed(tokens)` is the number of blocks for so many tokens.
        """
        return 0

    def victim(self):
        """Who leaves the batch, because the others need more blocks than there are."""
        return self.running[0]
