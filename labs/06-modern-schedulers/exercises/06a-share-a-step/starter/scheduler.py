"""A scheduler of your own, which grows from exercise to exercise."""

from labsched import order, scheduler


class Scheduler(scheduler.Scheduler):
    def share(self, budget, decoding, left):
        """How many tokens of each prompt the next step computes: a list as long as `left`.

        budget: the tokens that the step computes at most. decoding: how many requests decode in it.
        left: the tokens that each unfinished prompt still needs, in order of arrival.
        """
        return list(left)  # as if a step had room for every prompt
