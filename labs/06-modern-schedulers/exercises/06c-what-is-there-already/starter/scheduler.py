"""A scheduler of your own, which grows from exercise to exercise."""

from labsched import order, scheduler


def reused(prompts, block_size):
    """For each prompt, in order of arrival, how many of its tokens need not be computed. prompts: lists of ids."""
    return [0 for _ in prompts]


class Scheduler(scheduler.Scheduler):
    """Your scheduler: what it does not say is the labs' own."""
