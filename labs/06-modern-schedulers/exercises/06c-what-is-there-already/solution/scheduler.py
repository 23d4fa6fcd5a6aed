"""A scheduler of your own, which grows from exercise to exercise."""

from labsched import order, scheduler


def reused(prompts, block_size):
    """For each prompt, in order of arrival, how many of its tokens need not be computed. prompts: lists of ids."""
    known, found = set(), []
    for prompt in prompts:
        ends = range(block_size, len(prompt) + 1, block_size)
        beginnings = [tuple(prompt[:end]) for end in ends]
        there = 0
        for beginning in beginnings:
            if beginning not in known:
                break
            there = len(beginning)
        found.append(there)
        known.update(beginnings)
    return found


class Scheduler(scheduler.Scheduler):
    """Your scheduler: what it does not say is the labs' own."""
