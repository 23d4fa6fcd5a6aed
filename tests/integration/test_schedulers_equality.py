"""Whatever the scheduler is asked for, alone or together: answers in fp32 are those of the plain engine (fault 43)."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from labctl.artifacts import engines, weights
from labctl.workspace import Workspace
from labkit.evidence.near_tie import NEAR, margin
from labsched.features import DRAFT, NONE, PROMPT_LOOKUP, Features
from labsched.kv_budget import KVBudget
from labsched.order import ORDERS, order
from labsched.policy import Policy
from labsched.request import Request
from labsched.sampling_options import Sampling
from labsched.scheduler import Scheduler
from labserve.inflight.openvino_engine import BLOCK_SIZE, OpenVinoEngine
from labserve.params import BadInput

SPEC = "random:tiny-llama"
SEEDS = (*range(12), 57)  # 57: a prompt that is given up stands behind others that are not
BATCH, GUESSES = 4, 3

GREEDY = Sampling()
Plain = Callable[..., list[int]]  # of a prompt, a limit and how tokens are chosen


@dataclass
class Arrival:
    prompt: tuple[int, ...]
    limit: int
    at: int  # the turn before which it comes
    leaves: int | None  # the turn before which its client leaves
    sampling: Sampling = GREEDY


@pytest.fixture(scope="module")
def folder(cache: Path) -> str:
    workspace = Workspace(ROOT, cache)
    return str(engines.request("openvino", SPEC, {"precision": "fp32"}).make(workspace, print))


@pytest.fixture(scope="module")
def of_the_weights(cache: Path) -> str:
    return str(weights.parse_source(SPEC).locate(Workspace(ROOT, cache)))


@pytest.fixture(scope="module")
def plain(folder: str) -> Plain:
    """What the plain engine answers to each alone; the longest answer to a prompt begins with all the others."""
    engine = OpenVinoEngine(folder, KVBudget(64, BLOCK_SIZE), 1, True, 1, Features(max_num_tokens=2048))
    known: dict[tuple[tuple[int, ...], Sampling], tuple[int, list[int]]] = {}

    def answer(prompt: tuple[int, ...], limit: int, sampling: Sampling = GREEDY) -> list[int]:
        if known.get((prompt, sampling), (0, []))[0] < limit:
            handle, made, over = engine.add(list(prompt), limit, sampling), list[int](), False
            while not over:
                engine.step()
                tokens, over = engine.read(handle)
                made += tokens
            known[prompt, sampling] = limit, made
        return known[prompt, sampling][1][:limit]

    return answer


def mix(rng: random.Random, folder: str) -> tuple[Features, Policy, str, int, bool]:
    """Settings by chance; half of the mixes have all that goes together."""
    everything, shares = rng.random() < 0.5, rng.random() < 0.6
    speculation = NONE if shares else rng.choice([PROMPT_LOOKUP, DRAFT] if everything else [NONE, PROMPT_LOOKUP, DRAFT])
    chunked = speculation != DRAFT and (everything or rng.random() < 0.7)
    tokens = rng.choice([16, 33, 48, 64, 100, 256]) if chunked else 512
    guesses = GUESSES if speculation != NONE else 0
    features = Features(chunked, tokens, shares, speculation, guesses, folder if speculation == DRAFT else "")
    policy = Policy.MAX_UTILIZATION if everything else rng.choice(list(Policy))
    return features, policy, rng.choice(list(ORDERS)), rng.randint(11, 14), not everything and rng.random() < 0.2


def chosen(rng: random.Random, plain: Plain, prompt: tuple[int, ...], limit: int, guessed: bool) -> Sampling:
    """How tokens are chosen: half of the requests are greedy and nothing else.

    With guesses a seed gives the same distribution, not the same answer, and the engine refuses `min_length`.
    """
    if rng.random() < 0.5:
        return GREEDY
    options: dict[str, Any] = {}
    if rng.random() < 0.5:  # a token of the answer would end it, but for its least length
        options |= {"end_id": rng.choice(plain(prompt, limit)), "min_length": 0 if guessed else rng.randint(0, 60)}
    if rng.random() < 0.4:
        options["repetition_penalty"] = rng.choice([0.8, 1.3])
    if rng.random() < 0.4:
        options["presence_penalty"] = rng.choice([-1.0, 2.0])
    if not guessed and rng.random() < 0.4:
        options |= {"sample": True, "temperature": 0.8, "top_k": rng.choice([0, 20]), "seed": rng.randint(1, 99)}
    return Sampling(**options)


def requests(rng: random.Random, plain: Plain, guessed: bool) -> list[Arrival]:
    """A stream in which many begin alike, some are the same or go on where others end, and some clients leave.

    Some ask a beginning alone, for one token: its last block stays half full, and several who go on from there come
    together.
    """
    beginnings = [[rng.randrange(5, 2990) for _ in range(n)] for n in (32, 50, 100, 160)]
    alone = rng.choice(beginnings[1:])[: rng.choice([20, 45, 100])]
    found = [Arrival(tuple(alone), 1, 0, None)]
    together = rng.randint(3, 8)
    for number in range(17):
        prompt, chance = [], rng.random()
        if number < 4:
            prompt = alone + [rng.randrange(5, 2990) for _ in range(rng.randint(1, 20))]
        elif chance < 0.2:
            prompt = list(rng.choice(found).prompt)
        elif chance < 0.35:
            other = rng.choice(found)
            said = plain(other.prompt, other.limit)[: rng.randint(0, 40)]
            prompt = [*other.prompt, *said, *(rng.randrange(5, 2990) for _ in range(rng.randint(1, 10)))]
        else:
            prompt = rng.choice(beginnings)[: rng.choice([20, 32, 64, 160])] if rng.random() < 0.8 else []
            prompt = prompt + [rng.randrange(5, 2990) for _ in range(rng.randint(1, 30))] * rng.choice([1, 1, 3])
        at = together if number < 4 else together + rng.randint(0, 20)
        leaves = at + rng.randint(1, 12) if rng.random() < 0.25 else None
        short, limit = tuple(prompt[:260]), rng.randint(1, 90)
        found.append(Arrival(short, limit, at, leaves, chosen(rng, plain, short, limit, guessed)))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_answers_under_any_mix_of_settings_are_those_of_the_plain_engine(
    seed: int, folder: str, of_the_weights: str, plain: Plain
) -> None:
    rng = random.Random(seed)
    features, policy, word, blocks, static = mix(rng, folder)
    kv = KVBudget(blocks, BLOCK_SIZE)
    engine = OpenVinoEngine(folder, kv, BATCH, True, 1, features)
    engine.warm_up()
    scheduler = Scheduler(engine, kv, policy, BATCH, static, features, order(word))
    coming = sorted(requests(rng, plain, features.speculation != NONE), key=lambda request: request.at)
    asked: list[tuple[Arrival, Request]] = []
    left: set[int] = set()
    there: dict[Request, int] = {}  # tokens of each that must be in the cache
    for turn in range(5000):
        while coming and coming[0].at <= turn:
            request = coming.pop(0)
            job = Request(
                str(len(asked)), list(request.prompt), request.limit, request.sampling, tenant=rng.choice("abc")
            )
            job.priority = rng.randint(1, 9)
            asked.append((request, job))
            scheduler.submit(job)
        for number, (request, job) in enumerate(asked):
            if request.leaves is not None and request.leaves <= turn and job.end is None:
                scheduler.cancel(job)
                left.add(number)
        if not scheduler.idle:
            done = scheduler.step()
            assert done.blocks <= kv.blocks + BATCH
            assert all(right <= guesses for right, guesses in zip(done.accepted, done.drafted, strict=True))
            # What the log says of cached and computed tokens is what the engine did: the first token comes just then.
            made = {job: len(tokens) for job, tokens in done.produced}
            for job, letter, count in zip(done.batch, done.phase, done.computed, strict=True):
                there[job] = count + (job.found if job in done.admitted else there[job])
                if letter == "p" and features.speculation == NONE:
                    assert (job in made) == (there[job] == job.tokens - made.get(job, 0)), f"{job.id} is elsewhere"
        elif not coming:
            break
    for number, (request, job) in enumerate(asked):
        expected = plain(request.prompt, request.limit, request.sampling)
        if number in left:
            expected = expected[: len(job.output)]
        if job.output != expected:
            assert request.sampling is GREEDY, (number, features, policy, word, request.sampling)
            same = next(n for n, (a, b) in enumerate(zip(job.output, expected, strict=False)) if a != b)
            near = margin(of_the_weights, [*request.prompt, *expected[:same]])
            assert near is not None and near < NEAR, (number, features, policy, word, same, near)


@pytest.mark.parametrize(
    ("sampling", "evicted"),
    [
        (Sampling(min_length=20), True),
        (Sampling(repetition_penalty=1.3), True),
        (Sampling(presence_penalty=2.0), False),
        (Sampling(sample=True, temperature=0.8, seed=7), False),
    ],
    ids=["min_length", "repetition_penalty", "presence_penalty", "seed"],
)
def test_fault_43_an_eviction_with_min_length_penalties_and_seeds_changes_no_answer(
    sampling: Sampling, evicted: bool, folder: str, plain: Plain
) -> None:
    """Fault 43. What the engine cannot go on with after an eviction is never evicted: it has its memory to its end."""
    rng = random.Random(1)
    kv, features = KVBudget(6, BLOCK_SIZE), Features(max_num_tokens=256)
    scheduler = Scheduler(
        OpenVinoEngine(folder, kv, BATCH, True, 1, features), kv, Policy.MAX_UTILIZATION, BATCH, False
    )
    jobs: list[Request] = []
    for _ in range(5):
        prompt, limit = [rng.randrange(5, 2990) for _ in range(rng.randint(20, 40))], rng.randint(60, 90)
        asked = replace(sampling, end_id=plain(tuple(prompt), limit)[15] if sampling.min_length else None)
        jobs.append(Request(str(len(jobs)), prompt, limit, asked))
        scheduler.submit(jobs[-1])
    evictions = 0
    while not scheduler.idle:
        evictions += len(scheduler.step().preempted)
    assert (evictions > 0) == evicted
    for job in jobs:
        assert job.output == plain(tuple(job.prompt), job.limit, job.sampling)


def test_min_length_beside_guesses_is_refused_by_name(folder: str) -> None:
    features = Features(True, 256, False, PROMPT_LOOKUP, GUESSES)
    engine = OpenVinoEngine(folder, KVBudget(20, BLOCK_SIZE), BATCH, True, 1, features)
    with pytest.raises(BadInput, match="min_length: engine=openvino cannot keep it beside speculation=prompt_lookup"):
        engine.add([5, 6], 9, Sampling(min_length=3, end_id=7))


@pytest.mark.parametrize("tokens", [16, 40])
def test_half_a_prompt_in_the_cache_is_nobodys_beginning(tokens: int, folder: str, plain: Plain) -> None:
    """The engine knows a block by its tokens before they are computed: given up or copied then, it would lie."""
    rng = random.Random(3)
    kv, features = KVBudget(40, BLOCK_SIZE), Features(True, tokens, kv_cache_reuse=True)
    engine = OpenVinoEngine(folder, kv, BATCH, True, 1, features)
    engine.warm_up()
    scheduler = Scheduler(engine, kv, Policy.GUARANTEED_NO_EVICT, BATCH, False, features)
    found = 0
    for steps in range(1, 6):
        prompt = [rng.randrange(5, 2990) for _ in range(150)]
        gone, beside, after = (
            Request(name, prompt[:n], 8, Sampling()) for name, n in (("a", 150), ("b", 140), ("c", 150))
        )
        scheduler.submit(gone)
        for _ in range(steps):
            scheduler.step()
        scheduler.submit(beside)
        scheduler.step()
        scheduler.cancel(gone)
        scheduler.submit(after)
        while not scheduler.idle:
            scheduler.step()
        assert [job.output for job in (beside, after)] == [plain(tuple(j.prompt), 8) for j in (beside, after)]
        found += after.found
    assert found > 0
