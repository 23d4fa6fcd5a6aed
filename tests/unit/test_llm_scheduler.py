"""Who is in the batch: static against in-flight batching, and the two policies, on an engine that only counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from counting_engine import CountingEngine

from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.policy import Policy, effective_policy
from labsched.request import End, Request
from labsched.sampling_options import Sampling
from labsched.scheduler import Scheduler
from labsched.step import Step
from labserve.params import BadInput


def scheduler(
    limit: int = 4,
    blocks: int = 100,
    static: bool = False,
    policy: Policy = Policy.GUARANTEED_NO_EVICT,
    tokens: int = 10_000,
    chunked: bool = True,
) -> Scheduler:
    return Scheduler(
        CountingEngine(step_tokens=tokens), KVBudget(blocks, 4), policy, limit, static, Features(chunked, tokens)
    )


def job(name: str, limit: int, prompt: int = 2) -> Request:
    return Request(name, list(range(prompt)), limit)


def steps(of: Scheduler) -> Iterator[Step]:
    for _ in range(1000):
        if of.idle:
            return
        yield of.step()
    raise AssertionError("it does not end")


def batches(of: Scheduler) -> list[str]:
    return ["".join(job.id for job in turn.batch) for turn in steps(of)]


def test_a_static_batch_lets_nobody_join_before_its_last_member_is_done() -> None:
    static = scheduler(limit=2, static=True)
    for name, limit in (("a", 1), ("b", 3), ("c", 1)):
        static.submit(job(name, limit))
    assert batches(static) == ["ab", "b", "b", "c"]


def test_in_flight_a_waiting_request_joins_at_the_next_step() -> None:
    inflight = scheduler(limit=2)
    for name, limit in (("a", 1), ("b", 3), ("c", 1)):
        inflight.submit(job(name, limit))
    assert batches(inflight) == ["ab", "bc", "b"]


def test_without_chunks_a_prompt_waits_for_a_step_that_has_room_for_all_of_it() -> None:
    of = scheduler(tokens=8, chunked=False)
    for name, limit, prompt in (("a", 3, 5), ("b", 1, 4), ("c", 2, 7)):
        of.submit(job(name, limit, prompt))
    assert of.plan().batch == [of.waiting[0]]
    first = of.step()
    assert [job.id for job in first.batch] == ["a"] and first.plan.because.why == "no tokens" and first.computed == [5]
    assert batches(of) == ["ab", "ac", "c"]


def test_without_chunks_a_prompt_that_no_step_has_room_for_is_refused_by_name() -> None:
    scheduler(tokens=8, chunked=False).submit(job("a", 20, prompt=8))
    with pytest.raises(BadInput, match=r"input_ids: 9 tokens .* 8 \(max_num_tokens\), and enable_chunked_context"):
        scheduler(tokens=8, chunked=False).submit(job("a", 1, prompt=9))
    with pytest.raises(BadInput, match="input_ids: 27 tokens"):  # evicted at the end, it is computed with its answer
        scheduler(tokens=8, chunked=False, policy=Policy.MAX_UTILIZATION).submit(job("a", 20, prompt=8))


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
    ],
)
def test_what_an_engine_cannot_do_is_refused_by_name(words: dict[str, str], said: str) -> None:
    words["engine"] = "transformers"
    with pytest.raises(ValueError, match=said):
        Features.of(lambda name: words.get(name, ""), 256, 16, 2048, speculates=("prompt_lookup",))


def test_with_a_draft_model_a_prompt_goes_in_one_piece_and_status_says_why() -> None:
    words = {"speculation": "draft", "num_assistant_tokens": "3", "enable_chunked_context": "true", "draft_model": "d"}
    found = Features.of(lambda name: words.get(name, ""), 256, 16, 2048, speculates=("draft",))
    assert found == Features(False, 2048, False, "draft", 3, "d")
    said = {name: rest for name, *rest in found.in_force(lambda name: words.get(name, ""))}
    assert said["enable_chunked_context"] == ["true", "false", "with a draft model a prompt goes in one piece"]


def test_fewer_tokens_than_sequences_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="max_num_tokens: 15 are not a token for each of max_num_sequences=16"):
        Features.of(lambda name: {"max_num_tokens": "15"}.get(name, ""), usual=256, batch=16, context=2048)


def test_max_utilization_runs_more_at_a_time_and_evicts_where_no_evict_waits() -> None:
    preempted, largest = {}, {}
    for policy in Policy:
        of = scheduler(limit=8, blocks=10, policy=policy)
        for n in range(6):
            of.submit(job(str(n), 30))
        done = list(steps(of))
        preempted[policy] = sum(len(turn.preempted) for turn in done)
        largest[policy] = max(len(turn.batch) for turn in done)
    assert preempted[Policy.GUARANTEED_NO_EVICT] == 0 < preempted[Policy.MAX_UTILIZATION]
    assert largest[Policy.GUARANTEED_NO_EVICT] < largest[Policy.MAX_UTILIZATION]


def test_a_stop_word_ends_a_request_with_it() -> None:
    of = scheduler()
    one = job("a", 50)
    one.stop_words = [[4, 5]]
    of.submit(one)
    list(steps(of))
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
    add = of.engine.add

    odd = Sampling(seed=13)

    def picky(ids: list[int], limit: int, sampling: object) -> int:
        if sampling is odd:
            raise ValueError("odd")
        return add(ids, limit, sampling)

    monkeypatch.setattr(of.engine, "add", picky)
    bad, good = job("a", 3), job("b", 3)
    bad.sampling = odd
    of.submit(bad)
    of.submit(good)
    ended = [one.id for turn in steps(of) for one in turn.ended]
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
