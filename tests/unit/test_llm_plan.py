"""The plan of a step: pure, carried out as announced, also where a learner's own scheduler decides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from counting_engine import CountingEngine

from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.order import order
from labsched.own import scheduler_beside
from labsched.plan import Because, share_out
from labsched.policy import Policy
from labsched.request import End, Request
from labsched.sampling_options import Sampling
from labsched.scheduler import Scheduler

LABS = Path(__file__).resolve().parents[2] / "labs"
OWN = sorted(
    path.parent
    for path in LABS.glob("*/exercises/*/**/scheduler.py")
    if "labsched" in path.read_text()  # not vLLM's
)


def scheduler(
    blocks: int,
    policy: Policy = Policy.MAX_UTILIZATION,
    kind: type[Scheduler] = Scheduler,
    word: str = "fcfs",
    limit: int = 4,
    reuse: bool = False,
) -> Scheduler:
    features = Features(True, 64, kv_cache_reuse=reuse)
    return kind(CountingEngine(step_tokens=64), KVBudget(blocks, 4), policy, limit, False, features, order(word))


def job(name: str, limit: int, prompt: int = 3, tenant: str = "", priority: int = 2) -> Request:
    return Request(name, list(range(prompt)), limit, tenant=tenant, priority=priority)


def loads(seeds: int, steps: int = 150) -> Iterator[tuple[random.Random, int]]:
    """A random generator for each of a few loads, once for each step."""
    for seed in range(seeds):
        rng = random.Random(seed)
        for step in range(steps):
            yield rng, step


def as_it_is(of: Scheduler) -> object:
    notes = [(one, one.cached) for one in (*of.running, *of.waiting)]
    return list(of.running), list(of.waiting), deepcopy(vars(of.order)), notes, of.blocks_used


@pytest.mark.parametrize("folder", OWN, ids=lambda folder: f"{folder.parents[0].name}-{folder.name}")
@pytest.mark.parametrize("policy", list(Policy))
def test_the_announced_step_of_every_own_scheduler_is_the_real_one(folder: Path, policy: Policy) -> None:
    for rng, step in loads(4):
        if step == 0:
            of = scheduler(rng.randint(12, 18), policy, scheduler_beside(folder))
        if rng.random() < 0.4:
            of.submit(job(str(step), rng.randint(1, 20), rng.randint(1, 12), rng.choice("abc"), rng.randint(1, 3)))
        if of.idle:
            continue
        before = as_it_is(of)
        plan = of.plan()
        assert as_it_is(of) == before, "a plan changes nothing"
        turn = of.step()
        assert (plan.batch, plan.admitted, plan.victims) == (turn.batch, turn.admitted, turn.preempted)
        assert (plan.tokens, plan.waiting, plan.because.why) == (turn.computed, turn.waiting, turn.plan.because.why)


def test_a_plan_says_with_its_numbers_why_the_first_that_waits_does_not_join() -> None:
    of = scheduler(blocks=6)
    of.submit(job("a", 9, prompt=7))
    assert of.plan().because == Because()
    of.step()
    of.submit(job("b", 9, prompt=14))
    assert of.plan().because == Because("no KV block", need=4, used=3, reserve=1, blocks=6)
    assert of.plan().because.numbers() == {"need": 4, "used": 3, "reserve": 1, "blocks": 6}
    full = scheduler(blocks=100, limit=1)
    full.submit(job("a", 9))
    full.submit(job("b", 9))
    assert full.plan().because.why == "no slot"


def test_a_plan_says_how_many_blocks_the_batch_would_hold_without_its_victims() -> None:
    of = scheduler(blocks=5)
    of.submit(job("a", 12, prompt=7))
    of.submit(job("b", 12, prompt=3))
    while not (plan := of.plan()).victims:
        of.step(plan)
    assert plan.because.why == "no KV block"
    assert plan.because.used == of.blocks_used > plan.because.blocks == 5


def test_a_plan_says_how_many_tokens_a_prompt_has_and_for_how_many_the_step_has_room() -> None:
    features = Features(chunked_context=False, max_num_tokens=8)
    of = Scheduler(CountingEngine(step_tokens=8), KVBudget(100, 4), Policy.MAX_UTILIZATION, 4, False, features)
    of.submit(job("a", 2, prompt=5))
    of.submit(job("b", 2, prompt=4))
    assert of.plan().because == Because("no tokens", tokens=4, room=3)
    assert of.plan().because.numbers() == {"tokens": 4, "room": 3}


@pytest.mark.parametrize(
    ("word", "urgent", "others"),
    [
        ("priority", {"priority": 1}, {"priority": 9}),
        ("fair", {"tenant": "light"}, {"tenant": "flood"}),
        ("shortest_first", {"limit": 6}, {"limit": 20}),
    ],
)
def test_the_order_decides_which_request_is_evicted(word: str, urgent: dict[str, Any], others: dict[str, Any]) -> None:
    """vLLM preempts the worst by (priority, arrival): an urgent newcomer stays."""
    of = scheduler(blocks=12, word=word)
    for name in "ab":
        of.submit(job(name, **{"limit": 20, "prompt": 8, **others}))
    of.step()
    of.submit(job("urgent", **{"limit": 20, "prompt": 8, **urgent}))
    evicted = []
    while not of.idle:
        evicted += [one.id for one in of.step().preempted]
    assert evicted and "urgent" not in evicted


def test_a_request_that_could_not_be_computed_again_is_never_evicted() -> None:
    """Fault 43: chance and a presence penalty do not survive an eviction, so such requests have their whole memory."""
    kinds = [Sampling(), Sampling(sample=True, seed=3), Sampling(presence_penalty=1.0), Sampling(min_length=5)]
    evicted = []
    for rng, step in loads(6):
        if step == 0:
            of = scheduler(rng.randint(12, 18))
        if rng.random() < 0.4:
            of.submit(job(str(step), rng.randint(1, 20), rng.randint(1, 12)))
            of.waiting[-1].sampling = rng.choice(kinds)
        if not of.idle:
            turn = of.step()
            assert turn.blocks <= of.kv.blocks
            evicted += turn.preempted
    assert evicted and all(one.resumable for one in evicted)


def test_an_evicted_request_goes_on_with_what_is_left_of_its_least_length(monkeypatch: pytest.MonkeyPatch) -> None:
    of = scheduler(blocks=6)
    asked: list[tuple[int, int]] = []
    add = of.engine.add

    def noted(ids: list[int], limit: int, sampling: Sampling) -> object:
        asked.append((len(ids) - 3, sampling.min_length))
        return add(ids, limit, sampling)

    monkeypatch.setattr(of.engine, "add", noted)
    for name in "ab":
        of.submit(job(name, 15))
        of.waiting[-1].sampling = Sampling(min_length=9)
    while not of.idle:
        of.step()
    assert len(asked) > 2
    assert all(least == max(0, 9 - made) for made, least in asked)


class Lavish(Scheduler):
    """It admits more than there is memory for."""

    def reserve(self) -> int:
        return -self.kv.blocks


class Crowded(Scheduler):
    """It admits more requests than a step has tokens for."""

    @property
    def places(self) -> int:
        return 100


@pytest.mark.parametrize(
    ("kind", "prompt", "broken"), [(Lavish, 15, r"16 blocks used, of 12"), (Crowded, 1, "80 tokens in a step of 64")]
)
def test_a_step_that_breaks_an_invariant_is_refused_with_its_numbers(
    kind: type[Scheduler], prompt: int, broken: str
) -> None:
    of = scheduler(blocks=12 if kind is Lavish else 1000, kind=kind)
    for number in range(4 if kind is Lavish else 80):
        of.submit(job(str(number), 9, prompt=prompt))
    with pytest.raises(AssertionError, match=broken):
        for _ in range(3):
            of.step()


def test_a_job_with_an_error_has_failed_and_leaves_the_batch() -> None:
    of = scheduler(blocks=20)
    of.submit(job("a", 9))
    of.step()
    one = of.running[0]
    of.cancel(one, OSError("no room"))
    assert (one.end, one.why, of.running) == (End.FAILED, "failed", [])


def test_a_prompt_that_is_given_up_gets_its_tokens_after_older_ones_and_before_younger_ones() -> None:
    older, given_up, younger = (job(name, 4, prompt=10) for name in "abc")
    older.joined, given_up.joined, younger.joined = 1, 2, 3
    shares = share_out([older, younger], [given_up], 16, 0, lambda one: one.left, lambda _: 0)
    assert (shares.tokens, shares.dropped) == ([10, 0], [(given_up, 6)])
