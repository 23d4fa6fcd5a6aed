"""The schedules behind the concept drawings: what the labs' own scheduler decides, on an engine that only counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labsched.counting import CountingEngine
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.policy import Policy
from labsched.request import Request
from labsched.scheduler import Scheduler


class Arrival(NamedTuple):
    """A request: its name, the step before which it arrives, its prompt's tokens, and the tokens of its answer."""

    name: str
    step: int
    prompt: Sequence[int]
    answer: int


class Share(NamedTuple):
    """A request's part in one step."""

    name: str
    slot: int
    prefill: bool
    last: bool
    tokens: int  # computed for it
    in_use: int  # blocks of the KV cache that hold its tokens after the step
    promised: int  # blocks that it counts for, those in use among them


class Step(NamedTuple):
    """One step: its requests, the queue while it was computed, and the requests that were evicted before it."""

    shares: list[Share]
    waiting: list[str]
    evicted: list[str]


def prompt(tokens: int) -> range:
    return range(tokens)


def scheduled(
    arrivals: Sequence[Arrival],
    slots: int = 4,
    static: bool = False,
    blocks: int = 1000,
    block_size: int = 4,
    policy: Policy = Policy.GUARANTEED_NO_EVICT,
    budget: int = 1000,
    reuse: bool = False,
) -> tuple[list[Step], Scheduler]:
    """Every step until all requests are answered, and the scheduler as it is then."""
    engine = CountingEngine(budget)
    kv = KVBudget(blocks, block_size)
    scheduler = engine.scheduler = Scheduler(engine, kv, policy, slots, static, Features(True, budget, reuse))
    requests = {arrival.name: Request(arrival.name, list(arrival.prompt), arrival.answer) for arrival in arrivals}
    steps: list[Step] = []
    last_arrival = max(arrival.step for arrival in arrivals)
    while len(steps) < last_arrival or not scheduler.idle:
        for arrival in arrivals:
            if arrival.step == len(steps) + 1:
                scheduler.submit(requests[arrival.name])
        steps.append(step(scheduler, kv))
    return steps, scheduler


def step(scheduler: Scheduler, kv: KVBudget) -> Step:
    done = scheduler.step()
    parts = zip(done.requests, done.rows, done.phase, done.tokens, done.blocks, strict=True)
    shares = []
    for request, slot, letter, tokens, claim in parts:
        in_use = min(kv.needed(request.tokens), claim)
        shares.append(Share(request.id, slot, letter == "p", request in done.finished, tokens, in_use, claim))
    return Step(shares, [*done.waiting], [*done.evicted])


MIXED = [
    Arrival("A", 1, prompt(2), 6),
    Arrival("B", 1, prompt(2), 3),
    Arrival("C", 1, prompt(2), 11),
    Arrival("D", 1, prompt(2), 5),
    Arrival("E", 3, prompt(2), 4),
    Arrival("F", 3, prompt(2), 6),
]


def static_batching() -> list[Step]:
    return scheduled(MIXED, static=True)[0]


def inflight_batching() -> list[Step]:
    return scheduled(MIXED)[0]


PAIR = [Arrival("A", 1, prompt(2), 4), Arrival("B", 3, prompt(2), 3)]


def loop_in_model() -> list[Step]:
    return scheduled(PAIR, static=True)[0]


def loop_in_triton() -> list[Step]:
    return scheduled(PAIR)[0]


THREE = [Arrival("A", 1, prompt(6), 10), Arrival("B", 1, prompt(6), 10), Arrival("C", 1, prompt(6), 6)]


def promised_blocks(policy: Policy) -> list[Step]:
    """Three requests that need ten blocks in all, in a cache of eight blocks of four tokens."""
    return scheduled(THREE, blocks=8, policy=policy)[0]


READER = [Arrival("A", 1, prompt(2), 12), Arrival("F", 4, prompt(24), 3)]


def chunks(budget: int) -> list[Step]:
    """A reader's answer, and a prompt of 24 tokens that arrives before the fourth step."""
    return scheduled(READER, budget=budget)[0]


SYSTEM = list(range(8))
PREFIXES = [
    Arrival("A", 1, [*SYSTEM, 10, 11, 12, 13, 14], 12),
    Arrival("B", 2, [*SYSTEM, 20, 21, 22, 23, 24], 12),
    Arrival("C", 3, [*SYSTEM, 20, 21, 22, 23, 30], 12),
    Arrival("D", 4, [40, 41, 42, 43, 44], 12),
]


class CachedPrompt(NamedTuple):
    """A request of the prefix tree: the ids of its prompt's full blocks, and the tokens that it found in the cache."""

    name: str
    blocks: list[int]
    tokens: int
    prompt: int


def prefix_tree(arrivals: Sequence[Arrival] = PREFIXES) -> list[CachedPrompt]:
    """Prompts under prefix caching. Each joins one step after the previous one."""
    engine = CountingEngine(1000)
    kv = KVBudget(100, 4)
    features = Features(True, 1000, True)
    scheduler = engine.scheduler = Scheduler(engine, kv, Policy.GUARANTEED_NO_EVICT, 4, False, features)
    requests = [Request(arrival.name, list(arrival.prompt), arrival.answer) for arrival in arrivals]
    for request in requests:
        scheduler.submit(request)
        scheduler.step()
    assert scheduler.memory.blocks is not None
    numbers: dict[int, int] = {}  # of blocks, by their identity
    prompts = []
    for request in requests:
        full_blocks = scheduler.memory.blocks.of(request)[0][: len(request.prompt) // kv.block_size]
        ids = [numbers.setdefault(id(block), len(numbers)) for block in full_blocks]
        prompts.append(CachedPrompt(request.id, ids, request.found, len(request.prompt)))
    return prompts
