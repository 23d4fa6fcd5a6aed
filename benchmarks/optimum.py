"""How far the arena's policies are from the best possible schedule, which a search over small traces finds.

The search knows every length, and a policy knows none. A request that is preempted computes its tokens again in one
step, which also gives the next one; so, counted in steps, any set of requests that fits may have a token in any step,
and the best schedule is a shortest path over how many tokens each request has.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from labkit.predict.field import PlayingField
from labkit.predict.policy import Player
from labkit.predict.refereed import Refereed
from labsched.recording import Arrival
from labsched.replay import Replay, scheduler_of

GROUND = PlayingField(slots=3, blocks=7, block_size=4, step_tokens=512)
REQUESTS, PROMPT, ANSWER = 5, 8, 8  # of a trace; most tokens of each


def trace(seed: int, known: bool) -> list[Arrival]:
    """A few requests that all arrive before the first step. ``known``: their limits are their answers' lengths."""
    rng, made = random.Random(seed), []
    for number in range(1, REQUESTS + 1):
        prompt, answer = rng.randint(1, PROMPT), rng.randint(1, ANSWER)
        limit = answer if known else ANSWER
        early = answer < limit
        made.append(Arrival(str(number), 0.0, 0, prompt, limit, answer, "stop" if early else "length", word=early))
    return made


def best(arrivals: Sequence[Arrival], ground: PlayingField = GROUND) -> int:
    """The least sum, over all requests, of the steps until they are answered."""
    need = [[-(-(one.prompt + made) // ground.block_size) for made in range(one.made)] for one in arrivals]

    @cache
    def fitting(wanted: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The largest sets of requests whose next tokens fit into one step; 0 blocks: it is answered."""
        left = [place for place, blocks in enumerate(wanted) if blocks]
        sets = [
            chosen
            for size in range(1, min(len(left), ground.slots) + 1)
            for chosen in itertools.combinations(left, size)
            if sum(wanted[place] for place in chosen) <= ground.blocks
        ]
        return [one for one in sets if not any(set(one) < set(other) for other in sets)]

    start = (0,) * len(arrivals)
    end = tuple(one.made for one in arrivals)
    costs, heap = {start: 0}, [(0, start)]
    while heap:
        cost, made = heapq.heappop(heap)
        if made == end:
            return cost
        if cost > costs[made]:
            continue
        open_ = sum(have < whole for have, whole in zip(made, end, strict=True))  # each waits for this step
        wanted = tuple(
            need[place][have] if have < whole else 0 for place, (have, whole) in enumerate(zip(made, end, strict=True))
        )
        for chosen in fitting(wanted):
            after = tuple(have + (place in chosen) for place, have in enumerate(made))
            if cost + open_ < costs.get(after, cost + open_ + 1):
                costs[after] = cost + open_
                heapq.heappush(heap, (cost + open_, after))
    raise ValueError("a request does not fit into the cache")


def of_policy(policy: Player, arrivals: Sequence[Arrival], ground: PlayingField = GROUND) -> int:
    """The same sum under a policy, in the scheduler of the labs. Raises Foul."""
    scheduler = scheduler_of(ground.settings(arrivals), Refereed)
    assert isinstance(scheduler, Refereed)
    game = Replay(scheduler, arrivals, lambda row: 1.0)
    scheduler.begin(policy, game)
    game.run()
    return sum(number * len(row.ended) for number, row in enumerate(game.rows, 1))


def ratios(policies: Sequence[Path], seeds: int, known: bool) -> dict[str, list[float]]:
    """Each policy's sum over the best, for each trace."""
    traces = [trace(seed, known) for seed in range(seeds)]
    least = [best(arrivals) for arrivals in traces]
    found: dict[str, list[float]] = {}
    for path in policies:
        with Player(path) as policy:
            sums = [of_policy(policy, arrivals) for arrivals in traces]
        found[path.stem] = [one / other for one, other in zip(sums, least, strict=True)]
    return found
