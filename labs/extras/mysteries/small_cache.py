"""The scheduler uses only half of the KV cache."""

from labsched import scheduler
from labsched.kv_budget import KVBudget

LEAST = 10
COUNTERS = {"labs_tokens_total": (None, 4.3)}


class Scheduler(scheduler.Scheduler):
    def __init__(self, engine, kv, *more):
        super().__init__(engine, KVBudget(kv.blocks // 2, kv.block_size), *more)


def shows(steps):
    """Requests are refused for memory, and it is at most half of a slot's two or three blocks that there are."""
    return [step for step in steps if step["because"].get("blocks", 99) < 2 * step["slots"]]
