"""A request holds the KV blocks of its longest answer.

The policy guaranteed_no_evict of lab 05, where max_utilization is set; a wrong answer of exercise 05b.
"""

from labsched import scheduler
from labsched.policy import Policy

LEAST = 3
GROWTH = 40  # tokens: more than a block


class Scheduler(scheduler.Scheduler):
    def __init__(self, engine, kv, policy, *more):
        super().__init__(engine, kv, Policy.GUARANTEED_NO_EVICT, *more)


def shows(steps):
    """A request has made more than a block of tokens, and has as many blocks as at its beginning."""
    first, made, found = {}, {}, []
    for step in steps:
        for name, blocks, count in zip(step["ids"], step["blocks"], step["made"]):
            if name in step["joined"]:
                first[name], made[name] = blocks, 0
            made[name] = made.get(name, 0) + count
            if name in step["ended"] and made[name] >= GROWTH and blocks == first.get(name):
                found.append(step)
    return found
