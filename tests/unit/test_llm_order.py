"""How long each order lets somebody be overtaken; who goes first, test_scheduling_traces.py tells."""

from __future__ import annotations

from collections import Counter

import pytest
from counting_engine import CountingEngine

from labsched.kv_budget import KVBudget
from labsched.order import Fair, Priority, ShortestFirst, order
from labsched.policy import Policy
from labsched.request import Request
from labsched.scheduler import Scheduler


def scheduler(word: str, limit: int = 1) -> Scheduler:
    return Scheduler(
        CountingEngine(), KVBudget(10_000, 4), Policy.GUARANTEED_NO_EVICT, limit, static=False, order=order(word)
    )


def job(name: str, limit: int = 2, prompt: int = 2, tenant: str = "", priority: int = 2) -> Request:
    return Request(name, list(range(prompt)), limit, tenant=tenant, priority=priority)


def joined(of: Scheduler) -> list[str]:
    """Who came into the batch, in order, until nobody is left."""
    found = []
    while not of.idle:
        found += [one.id for one in of.step().admitted]
    return found


def test_without_a_word_the_first_to_come_is_first_and_another_word_is_refused() -> None:
    assert type(order("")) is type(order("fcfs"))
    with pytest.raises(ValueError, match="scheduling: 'lottery' is none of fcfs, shortest_first, priority, fair"):
        order("lottery")


@pytest.mark.parametrize(
    ("word", "bound"), [("shortest_first", ShortestFirst.PATIENCE), ("priority", Priority.PATIENCE)]
)
def test_nobody_is_overtaken_more_often_than_the_order_says(word: str, bound: int) -> None:
    of = scheduler(word, limit=3)
    last = job("last", limit=90, prompt=60)  # the longest, and of the second priority among first ones
    of.submit(last)
    of.submit(job("runs", limit=1, prompt=1, priority=1))
    before = 0
    for n in range(40 * bound):  # at every moment somebody shorter and more urgent waits
        while len(of.waiting) < 8:
            of.submit(job(str(n), limit=2, prompt=1, priority=1))
        if any(one is last for one in of.step().admitted):
            break
        before += 1
    assert 0 < of.order.overtaken[last] <= bound
    assert before > 0 and last not in of.waiting


def backlogged(word: str, sizes: dict[str, tuple[int, int]], turns: int) -> Counter[str]:
    """The counted tokens that each tenant got while all of them had somebody waiting; sizes: (prompt, answer)."""
    of = scheduler(word, limit=4)
    served: Counter[str] = Counter()
    for n in range(turns):
        for tenant, (prompt, answer) in sizes.items():
            while sum(one.tenant == tenant for one in of.waiting) < 5:
                of.submit(job(f"{tenant}{n}", answer, prompt, tenant))
        turn = of.step()
        for one in turn.admitted:
            served[one.tenant] += Fair.PROMPT * len(one.prompt)
        for one, tokens in turn.produced:
            served[one.tenant] += Fair.ANSWER * len(tokens)
    return served


def test_fair_gives_tenants_that_all_wait_the_same_within_the_stated_bound() -> None:
    sizes = {"flood": (5, 30), "light": (40, 3), "other": (1, 8)}
    served = backlogged("fair", sizes, 800)
    bound = 2 * max(Fair.PROMPT * 40, Fair.ANSWER * 4 * (5 + 30))
    assert max(served.values()) - min(served.values()) <= bound
    unfair = backlogged("fcfs", sizes, 800)
    assert max(unfair.values()) - min(unfair.values()) > 4 * bound


def test_a_tenant_that_was_away_does_not_save_up() -> None:
    of = scheduler("fair")
    for n in range(30):
        of.submit(job(f"a{n}", tenant="a"))
    for _ in range(20):
        of.step()
    for n in range(10):
        of.submit(job(f"b{n}", tenant="b"))
    assert [name[0] for name in joined(of)[:10]].count("b") in (4, 5, 6)


def test_what_an_eviction_makes_the_engine_compute_again_is_charged_to_nobody() -> None:
    of = Scheduler(CountingEngine(), KVBudget(6, 4), Policy.MAX_UTILIZATION, 4, static=False, order=Fair())
    jobs = [job(str(n), limit=12, prompt=3, tenant="a") for n in range(4)]
    for one in jobs:
        of.submit(one)
    evicted = 0
    while not of.idle:
        evicted += len(of.step().preempted)
    assert evicted > 0
    assert isinstance(of.order, Fair)
    assert of.order.served["a"] == sum(Fair.PROMPT * 3 + Fair.ANSWER * 12 for _ in jobs)


def test_thousands_of_tenants_do_not_stay_in_memory() -> None:
    of = scheduler("fair", limit=64)
    for n in range(Fair.MOST_TENANTS + 500):
        of.submit(job(str(n), limit=1, prompt=1, tenant=f"tenant {n}"))
        of.step()
    assert isinstance(of.order, Fair)
    assert len(of.order.served) <= Fair.MOST_TENANTS + 64
