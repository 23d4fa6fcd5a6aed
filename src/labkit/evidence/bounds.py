"""Bounds that every right answer to an exercise keeps, and a search for the smallest trace that breaks one.

The scheduler is a learner's ``scheduler.py``. It is asked, or it runs in virtual time over an engine that counts, so an
exercise calls these functions in a process of their own. All requests are there before the first step, and answers are
as long as their limits, or end before with a stop word: what is refuted here happens on a server too.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from labkit.errors import LabError
from labsched.log.settings import SchedulerSettings
from labsched.own import scheduler_beside, with_line
from labsched.replay.player import Replay, scheduler_of
from labsched.replay.recording import Arrival
from labsched.request import DEFAULT_PRIORITY
from labsched.scheduler import Scheduler
from labsched.step import Step


class PlayingField(NamedTuple):
    """Slots, KV blocks and their tokens, and tokens of a step."""

    slots: int
    blocks: int
    block_size: int
    step_tokens: int

    def settings(self, arrivals: Sequence[Arrival], others: Mapping[str, str] | None = None) -> SchedulerSettings:
        """The scheduler's settings, with `others`. Prompts share KV blocks if the trace has their hashes."""
        words = {
            "engine": "openvino",
            "gpt_model_type": "inflight_fused_batching",
            "batch_scheduler_policy": "max_utilization",
            "max_num_sequences": str(self.slots),
            "enable_chunked_context": "true",
            "enable_kv_cache_reuse": str(any(arrival.prefixes for arrival in arrivals)).lower(),
            "scheduling": "fcfs",
            **(others or {}),
        }
        return SchedulerSettings(words, self.blocks, self.block_size, self.step_tokens, 10**6, 10**6)


FAIR_TRACES, TRIES = 150, 40  # traces of a search; smaller traces that are tried, each with thousands of steps
PROMPT, ANSWER = 1, 2  # the weight of a token in a tenant's service (VTC: Sheng et al., OSDI 2024)
# One slot: small traces show what is unfair.
ROOMY = PlayingField(slots=1, blocks=10_000, block_size=32, step_tokens=256)
PROMPTS, ANSWERS = (1, 8, 40, 64), (1, 2, 8, 16)
CACHES, LONGEST = (6, 12, 20, 48), (40, 100)  # blocks; tokens of an answer
MORE_PREEMPTIONS, MORE_STEPS = 1.4, 1.6  # times the result of keeping one block for each running request
SOME_PREEMPTIONS, SOME_STEPS = 8, 60  # at least this many more; and a preemption for each eighth request
PREEMPTIONS, STEPS, STUCK = "preemptions", "steps", "stuck"
Kind = type[Scheduler]


class _CacheLoad(NamedTuple):
    """A cache, and the requests for it: from and to how many tokens prompts and answers have, and their number.

    ``limit``: tokens that each request may generate; 0: as many as its answer has.
    """

    blocks: int
    prompts: tuple[int, int]
    answers: tuple[int, int]
    requests: int
    limit: int = 0


LOADS = (  # small prompts fill some of a block, and their answers one to four more
    *(_CacheLoad(b, (16, 28), (a, a + 8), min(60, 3 * b // 2)) for b, a in itertools.product(CACHES, LONGEST)),
    # Four of these prompts fill the cache, and grow by a block each: a rule that keeps a third of it free runs two.
    _CacheLoad(48, (322, 330), (44, 52), 24),
    # Answers end long before their limit: a rule that keeps blocks free for all that they might have runs one or two.
    _CacheLoad(20, (16, 28), (40, 60), 30, limit=160),
)


def search(folder: str, bound: str, seed: int) -> dict[str, Any] | None:
    """What :func:`fair` or :func:`grows` finds, or the ``error`` of the learner's own file."""
    try:
        return {"fair": fair, "grows": grows}[bound](folder, seed)
    except Exception as error:
        return {"error": str(with_line(error, Path(folder)))}


def shares(folder: str, moments: Sequence[tuple[int, int, Sequence[int]]]) -> Any:
    """What `share` returns at each moment: it is asked with a budget, decoding requests, and what prompts need.

    Else the ``error`` of the learner's own file.
    """
    try:
        own = scheduler_of(ROOMY.settings(()), scheduler_beside(Path(folder)))
        return [list(own.share(*moment)) for moment in moments]
    except Exception as error:
        return {"error": str(with_line(error, Path(folder)))}


def fair(folder: str, seed: int) -> dict[str, Any] | None:
    """The smallest trace on which two tenants get further apart than VTC allows (Sheng et al., OSDI 2024); None: none.

    The bound is twice what a tenant can be ahead: a longest prompt, and the answers of all slots.
    """
    kind, rng = scheduler_beside(Path(folder)), random.Random(seed)

    def refuted(trace: Sequence[Arrival]) -> SmallTrace | None:
        answers = ROOMY.slots * max(arrival.limit for arrival in trace)
        bound = 2 * (PROMPT * max(arrival.prompt for arrival in trace) + ANSWER * answers)
        gap = service_gap(_played(kind, trace, ROOMY), {arrival.name: arrival.tenant for arrival in trace})
        return SmallTrace(trace, gap, bound) if gap > bound else None

    for _ in range(FAIR_TRACES):
        if counterexample := refuted(_tenants(rng)):
            return _counterexample(smallest(counterexample, refuted))
    return None


def service_gap(steps: Sequence[Step], tenants: Mapping[str, str | None]) -> float:
    """How far two tenants got apart in service while both waited, in counted tokens; 0 with one tenant."""
    served: dict[str | None, int] = defaultdict(int)
    worst = 0
    for tenant, other in itertools.combinations(sorted(set(filter(None, tenants.values()))), 2):
        least = most = apart = 0
        for step in steps:
            if not {tenant, other} <= {tenants[name] for name in step.waiting}:
                least = most = apart = 0
                continue
            served.clear()
            for name, letter, tokens, made in zip(step.ids, step.phase, step.tokens, step.made, strict=True):
                served[tenants[name]] += PROMPT * tokens * (letter == "p") + ANSWER * made
            apart += served[tenant] - served[other]
            least, most = min(least, apart), max(most, apart)
            worst = max(worst, apart - least, most - apart)
    return float(worst)


def grows(folder: str, seed: int) -> dict[str, Any] | None:
    """The smallest trace found on which far more is preempted, or far less runs, than with the shipped `reserve`."""
    kind, rng = scheduler_beside(Path(folder)), random.Random(seed)
    for load in LOADS:
        ground = PlayingField(slots=64, blocks=load.blocks, block_size=32, step_tokens=256)

        def refuted(trace: Sequence[Arrival], ground: PlayingField = ground) -> SmallTrace | None:
            reference = _played(Scheduler, trace, ground)
            try:
                own = _played(kind, trace, ground)
            except LabError:  # the replay is stuck
                return SmallTrace(trace, 0, 0, STUCK)
            lost, least = (sum(len(step.evicted) for step in steps) for steps in (own, reference))
            if lost > (most := max(MORE_PREEMPTIONS * least, least + max(SOME_PREEMPTIONS, len(trace) / 8))):
                return SmallTrace(trace, lost, most, PREEMPTIONS)
            if len(own) > (most := max(MORE_STEPS * len(reference), len(reference) + SOME_STEPS)):
                return SmallTrace(trace, len(own), most, STEPS)
            return None

        if counterexample := refuted(_growing(rng, load)):
            smaller = smallest(counterexample, refuted, fewer_requests, TRIES)
            return {**_counterexample(smaller), "blocks": load.blocks, "limit": load.limit}
    return None


def _counterexample(small: SmallTrace) -> dict[str, Any]:
    requests = [[arrival.tenant, arrival.prompt, arrival.made] for arrival in small.trace]
    return {"requests": requests, "measured": small.figure, "most": small.most, "what": small.counted}


def _tenants(rng: random.Random) -> list[Arrival]:
    names = rng.choice(("ab", "abc"))
    alike = {tenant: (rng.choice(PROMPTS), rng.choice(ANSWERS)) for tenant in names}
    mixed, arrivals = rng.random() < 0.5, []
    for number in range(1, rng.randint(4, 40) + 1):
        tenant = rng.choice(names)
        prompt, limit = (rng.choice(PROMPTS), rng.choice(ANSWERS)) if mixed else alike[tenant]
        arrivals.append(_arrival(number, prompt, limit, tenant))
    return arrivals


def _growing(rng: random.Random, load: _CacheLoad) -> list[Arrival]:
    return [
        _arrival(number, rng.randint(*load.prompts), rng.randint(*load.answers), "a", load.limit)
        for number in range(1, load.requests + 1)
    ]


def _arrival(number: int, prompt: int, made: int, tenant: str, limit: int = 0) -> Arrival:
    ended = "stop" if limit else "length"
    return Arrival(str(number), 0.0, 0, prompt, limit or made, made, ended, word=bool(limit), tenant=tenant)


def _played(kind: Kind, trace: Sequence[Arrival], ground: PlayingField) -> list[Step]:
    return Replay(scheduler_of(ground.settings(trace), kind), trace).run()


class SmallTrace(NamedTuple):
    """A trace, the scheduler's figure on it, and the most that it may be; ``counted``: what the figure counts."""

    trace: Sequence[Arrival]
    figure: float
    most: float
    counted: str = ""


def fewer_requests(trace: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """The same trace with fewer requests, first with half of them."""
    fewer = len(trace) // 2
    while fewer:
        for place in range(0, len(trace), fewer):
            yield [*trace[:place], *trace[place + fewer :]]
        fewer //= 2


def _smaller(trace: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """The same trace with fewer requests; or with one that is simpler."""
    yield from fewer_requests(trace)
    for place, request in enumerate(trace):
        half = request.limit // 2
        for simpler in (
            replace(request, made=request.limit, word=False, why="length"),
            replace(request, prompt=request.prompt // 2),
            replace(request, limit=half, made=min(request.made, half)),
            replace(request, at=0.0),
            replace(request, priority=DEFAULT_PRIORITY),
            replace(request, tenant="a"),
        ):
            if simpler != request and simpler.prompt >= 1 and simpler.limit >= 1:
                consistent = replace(simpler, word=simpler.made < simpler.limit)
                yield sorted([*trace[:place], consistent, *trace[place + 1 :]], key=lambda arrival: arrival.at)


Refute = Callable[[Sequence[Arrival]], SmallTrace | None]
Shrink = Callable[[Sequence[Arrival]], Iterator[list[Arrival]]]


def smallest(refutation: SmallTrace, refuted: Refute, smaller: Shrink = _smaller, tries: int = 10_000) -> SmallTrace:
    """Shrink a trace step by step while it still refutes, until no smaller one does, or ``tries`` were tried."""
    left = tries
    while True:
        for trace in smaller(refutation.trace):
            if not left:
                return refutation
            left -= 1
            if better := refuted(trace):
                refutation = better
                break
        else:
            return refutation
