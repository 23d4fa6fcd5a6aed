"""The checks at the end of a game, and the figures that need more than its steps."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from labkit.predict.field import PlayingField
from labkit.predict.policy import Foul
from labsched.recording import Arrival, StepRow

OVERTAKEN = 128  # later requests that may go before one; a convoy has 280
PROMPT, ANSWER = 1, 2  # the weight of a token in a tenant's service (VTC: Sheng et al., OSDI 2024)


def audit(rows: Sequence[StepRow], arrivals: Sequence[Arrival], ground: PlayingField) -> None:
    """Check what must hold at the end of every game. Raises Foul."""
    came = {arrival.name: number for number, arrival in enumerate(arrivals)}
    made: dict[str, int] = defaultdict(int)
    joined: set[str] = set()
    overtaken: dict[str, int] = defaultdict(int)
    for row in rows:
        assert (sum(row.tokens) <= ground.step_tokens and row.blocks <= ground.blocks) or len(row.batch) == 1
        assert len(row.batch) <= ground.slots
        for name in row.joined:
            if name not in joined:  # the first time
                joined.add(name)
                for other in row.waiting:
                    overtaken[other] += other not in joined and came[other] < came[name]
        for name, count in zip(row.batch, row.made, strict=True):
            made[name] += count
    assert made == {arrival.name: arrival.made for arrival in arrivals}
    name, times = max(overtaken.items(), key=lambda item: item[1], default=("", 0))
    if times > OVERTAKEN:
        raise Foul("starves", f"{times} later requests went before request {name}, of at most {OVERTAKEN}")


def service_gap(rows: Sequence[StepRow], tenants: Mapping[str, str]) -> float:
    """How far two tenants got apart in service while both waited, in counted tokens; 0 with one tenant."""
    served: dict[str, int] = defaultdict(int)
    worst = 0
    for tenant, other in itertools.combinations(sorted(set(tenants.values())), 2):
        least = most = apart = 0
        for row in rows:
            if not {tenant, other} <= {tenants[name] for name in row.waiting}:
                least = most = apart = 0
                continue
            served.clear()
            for name, letter, tokens, made in zip(row.batch, row.phase, row.tokens, row.made, strict=True):
                served[tenants[name]] += PROMPT * tokens * (letter == "p") + ANSWER * made
            apart += served[tenant] - served[other]
            least, most = min(least, apart), max(most, apart)
            worst = max(worst, apart - least, most - apart)
    return float(worst)


def worst_slowdown(
    rows: Sequence[StepRow], arrived: Mapping[str, float], arrivals: Sequence[Arrival], ground: PlayingField
) -> float:
    """The longest time that a request took, as a multiple of what it takes with the server to itself."""
    ended = {name: row.over for row in rows for name in row.ended}
    return max((ended[arrival.name] - arrived[arrival.name]) / ground.alone(arrival)[1] for arrival in arrivals)
