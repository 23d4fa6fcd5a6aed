"""The scheduler by itself, on an engine that only counts: what neither the rules nor the golden trace tell.

Those are held by test_scheduling.py and test_scheduling_traces.py.
"""

from __future__ import annotations

import doctest
import itertools
import random
from collections import Counter
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from counting_engine import CountingEngine

import labsched.scheduler
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.order import Fair, Priority, ShortestFirst, order
from labsched.own import scheduler_beside
from labsched.plan import share_out
from labsched.policy import Policy, effective_policy
from labsched.request import End, Request, Sampling
from labsched.scheduler import Scheduler
from labsched.step import Step
from labserve.params import BadInput

LABS = ROOT / "labs"
OWN = sorted(
    path.parent
    for path in LABS.glob("*/exercises/*/**/scheduler.py")
    if "labsched" in path.read_text()  # not vLLM's
)


def scheduler(
    blocks: int = 100,
    policy: Policy = Policy.MAX_UTILIZATION,
    kind: type[Scheduler] = Scheduler,
    word: str = "fcfs",
    tokens: int = 64,
    chunked: bool = True,
    most: int = 4,
) -> Scheduler:
    engine, features = CountingEngine(step_tokens=tokens), Features(chunked, tokens)
    return kind(engine, KVBudget(blocks, 4), policy, most, False, features, order(word))


def job(name: str, limit: int = 2, prompt: int = 2, tenant: str = "", priority: int = 2) -> Request:
    return Request(name, list(range(prompt)), limit, tenant=tenant, priority=priority)


def run(of: Scheduler) -> list[Step]:
    """Its steps until nobody is left."""
    steps: list[Step] = []
    while not of.idle:
        assert len(steps) < 1000, "it does not end"
        steps.append(of.step())
    return steps


def test_the_trace_in_the_docstring_of_a_step_is_what_happens() -> None:
    ran = doctest.testmod(labsched.scheduler, raise_on_error=False)
    assert ran.attempted >= 3 and not ran.failed


def as_it_is(of: Scheduler) -> object:
    notes = [(one, one.cached) for one in (*of.running, *of.waiting)]
    return list(of.running), list(of.waiting), deepcopy(vars(of.order)), notes, of.blocks_used


@pytest.mark.parametrize("folder", OWN, ids=lambda folder: f"{folder.parents[0].name}-{folder.name}")
@pytest.mark.parametrize("policy", list(Policy))
def test_the_announced_step_of_every_own_scheduler_is_the_real_one(folder: Path, policy: Policy) -> None:
    for seed, step in itertools.product(range(4), range(150)):
        if step == 0:
            rng = random.Random(seed)
            of = scheduler(rng.randint(12, 18), policy, scheduler_beside(folder))
        if rng.random() < 0.4:
            of.submit(job(str(step), rng.randint(1, 20), rng.randint(1, 12), rng.choice("abc"), rng.randint(1, 3)))
        if of.idle:
            continue
        before = as_it_is(of)
        plan = of.plan()
        assert as_it_is(of) == before, "a plan changes nothing"
        turn = of.step()
        joined, evicted, waiting = ([one.name for one in some] for some in (plan.admitted, plan.victims, plan.waiting))
        assert (plan.batch, joined, evicted) == (turn.requests, turn.joined, turn.evicted)
        assert (plan.tokens, waiting, plan.because.why) == (turn.tokens, [*turn.waiting], turn.why)


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
    evicted = [name for step in run(of) for name in step.evicted]
    assert evicted and "urgent" not in evicted


def test_an_evicted_request_goes_on_with_what_is_left_of_its_least_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault 43."""
    of = scheduler(blocks=6)
    asked: list[tuple[int, int]] = []
    add = of.engine.add

    def noted(ids: list[int], limit: int, sampling: Sampling) -> object:
        asked.append((len(ids) - 3, sampling.min_length))
        return add(ids, limit, sampling)

    monkeypatch.setattr(of.engine, "add", noted)
    for name in "ab":
        of.submit(job(name, 15, prompt=3))
        of.waiting[-1].sampling = Sampling(min_length=9)
    run(of)
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
    shares = share_out([older, younger], [given_up], 16, 0, lambda one: one.left, lambda _: 0, scheduler(20).share)
    assert (shares.tokens, shares.dropped) == ([10, 0], [(given_up, 6)])


@pytest.mark.parametrize(
    ("policy", "limit", "prompt", "longest"),
    [
        (Policy.GUARANTEED_NO_EVICT, 1, 9, 9),
        (Policy.MAX_UTILIZATION, 20, 8, 27),  # evicted at the end, it is computed with its answer
    ],
)
def test_without_chunks_a_prompt_that_no_step_has_room_for_is_refused_by_name(
    policy: Policy, limit: int, prompt: int, longest: int
) -> None:
    with pytest.raises(
        BadInput, match=rf"input_ids: {longest} tokens .* 8 \(max_num_tokens\), and enable_chunked_context"
    ):
        scheduler(policy=policy, tokens=8, chunked=False).submit(job("a", limit, prompt=prompt))


@pytest.mark.parametrize(
    ("words", "features"),
    [
        ({}, Features(True, 256)),
        ({"max_num_tokens": "16"}, Features(True, 16)),
        ({"enable_chunked_context": "false"}, Features(False, 2048)),
        ({"enable_chunked_context": "False", "max_num_tokens": "512"}, Features(False, 512)),
    ],
)
def test_a_step_has_the_tokens_that_it_is_given_or_the_engines_own(words: dict[str, str], features: Features) -> None:
    assert Features.of(lambda name: words.get(name, ""), usual=256, batch=16, context=2048) == features


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"speculation": "draft"}, "speculation: engine transformers cannot do 'draft'; it has: none, prompt_lookup"),
        (
            {"preemption": "swap"},
            "preemption: engine transformers cannot do 'swap': it cannot put keys and values aside",
        ),
        (
            {"speculation": "prompt_lookup", "num_assistant_tokens": "3", "max_num_tokens": "63"},
            r"max_num_tokens: 63 are not a token and its 3 draft tokens \(num_assistant_tokens\) for each of ",
        ),
        (
            {"speculation": "prompt_lookup", "num_assistant_tokens": "3", "enable_kv_cache_reuse": "true"},
            "enable_kv_cache_reuse: engine transformers cannot share blocks beside speculation=prompt_lookup",
        ),
        ({"max_num_tokens": "15"}, "max_num_tokens: 15 are not a token for each of max_num_sequences=16"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(words: dict[str, str], said: str) -> None:
    asked = {"engine": "transformers", **words}
    with pytest.raises(ValueError, match=said):
        Features.of(lambda name: asked.get(name, ""), 256, 16, 2048, speculates=("prompt_lookup",))


def test_with_a_draft_model_a_prompt_goes_in_one_piece_and_status_says_why() -> None:
    words = {"speculation": "draft", "num_assistant_tokens": "3", "enable_chunked_context": "true", "draft_model": "d"}
    found = Features.of(lambda name: words.get(name, ""), 256, 16, 2048, speculates=("draft",))
    assert found == Features(False, 2048, False, "draft", 3, "d")
    said = {name: rest for name, *rest in found.in_force(lambda name: words.get(name, ""))}
    assert said["enable_chunked_context"] == ["true", "false", "with a draft model a prompt goes in one piece"]


def test_a_stop_word_ends_a_request_with_it() -> None:
    of = scheduler()
    one = job("a", 50)
    one.stop_words = [[4, 5]]
    of.submit(one)
    run(of)
    assert one.output == [2, 3, 4, 5]


def test_of_several_tokens_at_once_those_after_a_stop_word_are_dropped() -> None:
    of = scheduler()
    one = job("a", 50)
    one.stop_words = [[4, 5]]
    of.submit(one)
    of.step()
    of.engine.new[one.handle] = []  # type: ignore[attr-defined]
    of.engine.step = lambda: of.engine.new.update({one.handle: [3, 4, 5, 6, 7]})  # type: ignore[attr-defined,method-assign]
    turn = of.step()
    assert (one.output, one.why, turn.produced) == ([2, 3, 4, 5], "stop", [(one, [3, 4, 5])])


def test_a_request_that_the_engine_refuses_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    of = scheduler()
    add, odd = of.engine.add, Sampling(seed=13)

    def picky(ids: list[int], limit: int, sampling: object) -> int:
        if sampling is odd:
            raise ValueError("odd")
        return add(ids, limit, sampling)

    monkeypatch.setattr(of.engine, "add", picky)
    bad, good = job("a", 3), job("b", 3)
    bad.sampling = odd
    of.submit(bad)
    of.submit(good)
    ended = [one.id for step in run(of) for one in step.finished]
    assert (ended, bad.end, str(bad.error), good.end) == (["a", "b"], End.FAILED, "odd", End.DONE)


@pytest.mark.parametrize(
    ("asked", "static", "effective", "said"),
    [
        ("max_utilization", False, "max_utilization", ""),
        ("guaranteed_no_evict", False, "guaranteed_no_evict", ""),
        ("guaranteed_completion", False, "guaranteed_no_evict", "the workshop's word"),
        ("max_utilization", True, "guaranteed_no_evict", "V1 runs a batch to its end"),
    ],
)
def test_the_policy_in_force_is_told_with_its_reason(asked: str, static: bool, effective: str, said: str) -> None:
    policy, reason = effective_policy(asked, static)
    assert policy.value == effective
    assert said in reason and bool(said) == bool(reason)


def test_a_word_that_is_no_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_scheduler_policy: 'greedy' is not one of"):
        effective_policy("greedy", False)


@pytest.mark.parametrize(
    ("tokens", "fraction", "blocks"), [("", "", 14), ("128", "0.5", 4), ("100000", "1.0", 16), ("", "0.25", 4)]
)
def test_the_smaller_of_both_bounds_holds(tokens: str, fraction: str, blocks: int) -> None:
    assert KVBudget.of(tokens, fraction, memory=2**16, token_bytes=128, block_size=32).blocks == blocks


@pytest.mark.parametrize(("tokens", "fraction"), [("31", "0.9"), ("", "1.5"), ("", "0")])
def test_a_kv_cache_without_a_block_is_refused(tokens: str, fraction: str) -> None:
    with pytest.raises(ValueError, match="kv_cache_free_gpu_mem_fraction"):
        KVBudget.of(tokens, fraction, memory=2**16, token_bytes=128, block_size=32)


# -- how long each order lets somebody be overtaken --------------------------------------------------------------------


def ordered(word: str, most: int) -> Scheduler:
    """A scheduler with memory for all."""
    return scheduler(10_000, Policy.GUARANTEED_NO_EVICT, word=word, tokens=10_000, most=most)


def test_without_a_word_the_first_to_come_is_first_and_another_word_is_refused() -> None:
    assert type(order("")) is type(order("fcfs"))
    with pytest.raises(ValueError, match="scheduling: 'lottery' is not one of fcfs, shortest_first, priority, fair"):
        order("lottery")


@pytest.mark.parametrize(
    ("word", "bound"), [("shortest_first", ShortestFirst.PATIENCE), ("priority", Priority.PATIENCE)]
)
def test_nobody_is_overtaken_more_often_than_the_order_says(word: str, bound: int) -> None:
    of = ordered(word, most=3)
    last = job("last", limit=90, prompt=60)  # the longest, and of the second priority among first ones
    of.submit(last)
    of.submit(job("runs", limit=1, prompt=1, priority=1))
    before = 0
    for n in range(40 * bound):  # at every moment somebody shorter and more urgent waits
        while len(of.waiting) < 8:
            of.submit(job(str(n), limit=2, prompt=1, priority=1))
        if last.name in of.step().joined:
            break
        before += 1
    assert 0 < of.order.overtaken[last] <= bound
    assert before > 0 and last not in of.waiting


def backlogged(word: str, sizes: dict[str, tuple[int, int]], turns: int) -> Counter[str | None]:
    """The counted tokens that each tenant got while all of them had somebody waiting; sizes: (prompt, answer)."""
    of = ordered(word, most=4)
    served: Counter[str | None] = Counter()
    for n in range(turns):
        for tenant, (prompt, answer) in sizes.items():
            while sum(one.tenant == tenant for one in of.waiting) < 5:
                of.submit(job(f"{tenant}{n}", answer, prompt, tenant))
        turn = of.step()
        for one in (one for one in turn.requests if one.name in turn.joined):
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
    of = ordered("fair", most=1)
    for n in range(30):
        of.submit(job(f"a{n}", tenant="a"))
    for _ in range(20):
        of.step()
    for n in range(10):
        of.submit(job(f"b{n}", tenant="b"))
    joined = [name[0] for step in run(of) for name in step.joined]
    assert joined[:10].count("b") in (4, 5, 6)


def test_what_an_eviction_makes_the_engine_compute_again_is_charged_to_nobody() -> None:
    of = scheduler(6, word="fair")
    for n in range(4):
        of.submit(job(str(n), limit=12, prompt=3, tenant="a"))
    assert any(step.evicted for step in run(of))
    assert isinstance(of.order, Fair)
    assert of.order.served["a"] == 4 * (Fair.PROMPT * 3 + Fair.ANSWER * 12)


def test_thousands_of_tenants_do_not_stay_in_memory() -> None:
    of = ordered("fair", most=64)
    for n in range(Fair.MOST_TENANTS + 500):
        of.submit(job(str(n), limit=1, prompt=1, tenant=f"tenant {n}"))
        of.step()
    assert isinstance(of.order, Fair)
    assert len(of.order.served) <= Fair.MOST_TENANTS + 64
