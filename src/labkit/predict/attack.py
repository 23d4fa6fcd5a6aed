"""The adversary: looks for a small trace on which a policy is much worse than another one."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from labkit.predict.field import PlayingField
from labkit.predict.policy import Foul, Player
from labkit.predict.referee import play_trace
from labsched.recording import Arrival
from labsched.smallest import SmallTrace, smallest

GROUND = PlayingField(slots=3, blocks=16, block_size=4, step_tokens=16)  # so small that few requests fill it
MOST = 10  # requests
LEAST = {"recomputed_tokens": 8.0, "service_gap": 64.0, "worst_slowdown": 2.0, "ttft_p99_ms": 20.0}  # worth a word


def attack(
    policy: Player, reference: Player, figure: str, times: float, *, seed: int = 0, seconds: float
) -> SmallTrace | None:
    """The smallest trace found on which ``figure`` is more than ``times`` the reference's, or the policy is fouled.

    Args:
        figure: one of LEAST; below its value there the difference counts for nothing.
        seconds: how long to look for one; to make it smaller takes a moment more.
    """

    def refuted(trace: Sequence[Arrival]) -> SmallTrace | None:
        reference_value = play_trace(reference, trace, GROUND)[figure]
        try:
            value = play_trace(policy, trace, GROUND)[figure]
        except Foul as foul:
            return SmallTrace(trace, 0.0, reference_value, f"{foul.word}: {foul}")
        much_worse = value > max(times * reference_value, LEAST[figure])
        return SmallTrace(trace, value, reference_value) if much_worse else None

    rng, until = random.Random(seed), time.monotonic() + seconds
    while True:
        if counterexample := refuted(_random(rng)):
            return smallest(counterexample, lambda trace: refuted(trace) if policy.alive else None)
        if time.monotonic() > until:
            return None


def _random(rng: random.Random) -> list[Arrival]:
    at, arrivals = 0.0, []
    for number in range(1, rng.randint(3, MOST) + 1):
        limit = rng.choice((4, 8, 24, 40))
        made = limit if rng.random() < 0.5 else rng.randint(1, limit)
        arrivals.append(
            Arrival(
                str(number),
                at,
                0,
                rng.choice((2, 4, 12, 20)),
                limit,
                made,
                "length" if made == limit else "stop",
                word=made < limit,
                tenant=rng.choice("ab"),
                priority=rng.choice((1, 2, 3)),
            )
        )
        at += rng.choice((0.0, 0.0, 0.004, 0.03))
    return arrivals
