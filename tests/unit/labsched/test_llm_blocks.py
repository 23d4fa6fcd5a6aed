"""The KV cache when blocks are shared, block by block; whatever comes, it is test_scheduling.py that asks."""

from __future__ import annotations

import counting_engine
from scheduling_machine import Written

from labsched.blocks import Blocks
from labsched.counting import CountingEngine
from labsched.engine import Engine
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.policy import Policy
from labsched.request import Request
from labsched.scheduler import Scheduler

SIZE = 4


def scheduler(blocks: int, engine: Engine | None = None, tokens: int = 10_000) -> Scheduler:
    """A scheduler that shares blocks."""
    features = Features(True, tokens, kv_cache_reuse=True)
    engine = engine or counting_engine.CountingEngine()
    return Scheduler(engine, KVBudget(blocks, SIZE), Policy.GUARANTEED_NO_EVICT, 4, False, features)


def test_a_beginning_that_others_hold_costs_no_memory_and_one_that_nobody_holds_does() -> None:
    of = scheduler(9)
    prompt = list(range(16))
    first, second = Request("a", [*prompt, 20], 7), Request("b", [*prompt, 21], 7)  # six blocks each, four alike
    of.submit(first)
    of.step()
    of.submit(second)
    assert [*of.step().ids] == ["a", "b"] and of.blocks_used == 8
    assert second.found == 16
    while not of.idle:
        of.step()
    assert of.memory.blocks is not None
    assert of.blocks_used == 0 and of.memory.blocks.find(prompt)[1] == 16
    third, fourth = Request("c", [*prompt, 22], 7), Request("d", list(range(30, 47)), 7)
    of.submit(third)
    of.submit(fourth)  # what is kept is not free twice
    assert [*of.step().ids] == ["c"] and third.found == 16 and of.blocks_used == 6


def test_a_newcomer_fills_a_block_up_beside_one_whose_prompt_ends_in_it() -> None:
    """The other one has no token in that place yet, and copies the block before it writes there."""
    of = scheduler(9)
    of.memory.blocks = Written(13, SIZE)
    prompt = [1, 2, 3, 4, 5, 6]
    for request in (Request("a", prompt, 1), Request("b", [*prompt, 0, 9], 3), Request("c", prompt, 3)):
        of.submit(request)
        if request.id == "a":
            of.step()
    assert [*of.step().ids] == ["b", "c"]
    while not of.idle:
        step = of.step()
        assert all(of.memory.blocks.stands(one, one.ids, one.cached) for one in of.running), step


def test_the_block_that_was_used_longest_ago_is_overwritten_first() -> None:
    blocks = Blocks(4, SIZE)
    for start in (0, 100):
        tokens = list(range(start, start + 2 * SIZE))
        blocks.begin(start, tokens)
        blocks.grow(start, tokens, len(tokens))
        blocks.end(start)
    blocks.begin("again", list(range(2 * SIZE)))
    blocks.end("again")
    other = list(range(200, 200 + SIZE))
    blocks.begin("other", other)
    blocks.grow("other", other, SIZE)
    assert blocks.find([*range(2 * SIZE), 9])[1] == 2 * SIZE
    assert blocks.find([*range(100, 100 + 2 * SIZE), 9])[1] == 0  # its first block is gone, and so is all behind it


def test_a_prompt_that_is_there_whole_is_computed_from_its_last_token_on() -> None:
    blocks = Blocks(4, SIZE)
    tokens = list(range(2 * SIZE))
    blocks.begin("a", tokens)
    blocks.grow("a", tokens, len(tokens))
    assert blocks.begin("b", tokens) == 2 * SIZE - 1
    blocks.grow("b", tokens, len(tokens))  # the last token is written over by itself
    assert blocks.held == 2


def test_a_block_whose_last_token_is_computed_again_is_not_counted_as_copied() -> None:
    of = scheduler(4)
    of.submit(Request("a", list(range(SIZE)), 1))
    of.step()
    of.submit(Request("b", list(range(SIZE)), SIZE))  # two blocks, of them the one that a has computed
    of.submit(Request("c", list(range(2 * SIZE)), SIZE))  # three blocks, of them the same one
    step = of.step()
    assert [*step.ids] == ["b", "c"] and step.kv_blocks_used == of.blocks_used == 4


def test_a_part_of_a_block_is_found_as_far_as_it_is_filled() -> None:
    blocks = Blocks(4, SIZE)
    tokens = list(range(SIZE + 2))
    blocks.begin("a", tokens)
    blocks.grow("a", tokens, len(tokens))
    blocks.end("a")
    assert blocks.find([*tokens, 77, 78, 79])[1] == SIZE + 2
    assert blocks.find([*tokens[: SIZE + 1], 77])[1] == SIZE


def test_a_block_that_is_half_full_is_filled_up_by_one_at_a_time_and_shared_by_those_who_end_in_it() -> None:
    blocks = Blocks(9, SIZE)
    beginning = list(range(SIZE + 2))
    blocks.begin("asked alone", beginning)
    blocks.grow("asked alone", beginning, len(beginning))
    blocks.end("asked alone")
    first, second = [*beginning, 20], [*beginning, 30]
    assert not blocks.unfit(first)
    assert blocks.begin("first", first) == len(beginning)
    assert blocks.unfit(second) and not blocks.unfit(beginning)
    blocks.grow("first", first, len(first))
    assert blocks.unfit(second), "it is written into, and has its old name"
    first.append(21)
    blocks.grow("first", first, len(first))
    assert not blocks.unfit(second) and blocks.begin("second", second) == SIZE  # it has its own name now


def test_a_block_that_was_computed_twice_is_found_although_the_first_copy_is_given_up() -> None:
    blocks = Blocks(4, SIZE)
    tokens = list(range(SIZE))
    for owner in ("a", "b"):
        blocks.begin(owner, tokens)
    for owner in ("a", "b"):
        blocks.grow(owner, tokens, SIZE)
    blocks.end("b")
    blocks.end("a")  # of two blocks with the same tokens one is kept
    blocks.begin("c", [*tokens, 20])
    assert blocks.find([*tokens, 30])[1] == SIZE


def test_a_prompt_that_begins_as_the_engines_warm_up_finds_its_block() -> None:
    of = scheduler(9)
    job = Request("a", [*[0] * SIZE, 9], 1)
    of.submit(job)
    of.step()
    assert job.found == SIZE


def test_a_preempted_request_that_returns_gets_its_last_token_after_the_prompts_before_it() -> None:
    """All but one of its tokens are cached, and to the engine it is a prompt still."""
    engine = CountingEngine(8, finishes=True)
    of = engine.scheduler = scheduler(20, engine, tokens=8)
    tokens = list(range(2 * SIZE))
    of.submit(Request("earlier", tokens, 1))
    while not of.idle:
        of.step()
    of.submit(Request("long", list(range(100, 120)), 1))
    of.submit(Request("back", tokens[:-1], 4, output=tokens[-1:]))
    step = of.step()
    assert (step.phase, step.cached, step.tokens) == ("pp", [0, 2 * SIZE - 1], [8, 0])


def test_memory_is_taken_for_blocks_that_are_used() -> None:
    blocks = Blocks(2**40, 16)
    blocks.begin("a", [1] * 40)
    blocks.grow("a", [1] * 40, 40)
    assert blocks.held == 3
