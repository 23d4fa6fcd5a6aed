"""Twenty requests in a cache of eight blocks: few evictions, the right ones, a fair batch, and everybody answered."""

from itertools import pairwise

REQUESTS, EVICTIONS, MEAN = 20, 13, 2.2


def check(trial):
    requests = requests_of(trial.rng)
    records, steps = trial.queued(requests)
    evictions = sum(step.more["preempted"] for step in steps)
    trial.expect(
        "evictions",
        f"at most {EVICTIONS}",
        evictions,
        evictions <= EVICTIONS,
        "the cache thrashes: whoever is let in takes the blocks that the others need for their next tokens, and "
        "somebody must leave again.",
    )
    unfair = evicted_before_a_later_one(steps, [record.id for record in records])
    trial.expect(
        "evicted while one that came later stayed",
        "0",
        unfair,
        unfair == 0,
        "a request was evicted while one that came later stayed: whoever came last makes room.",
    )
    mean = sum(step.batch for step in steps) / len(steps)
    trial.expect(
        "requests in a step, on average",
        f"at least {MEAN}",
        f"{mean:.2f}",
        mean >= MEAN,
        "hardly anybody runs: so much is kept free that the cache lies idle.",
    )
    whole = sum(record.tokens == limit for record, (_, limit) in zip(records, requests, strict=True))
    trial.expect(
        "requests answered whole",
        f"{REQUESTS}",
        whole,
        whole == REQUESTS,
        "an answer has too few tokens: whoever is evicted must come back.",
    )


def requests_of(rng):
    """Each prompt fills most of a block, and its answer two more."""
    return [([rng.randint(5, 2000) for _ in range(rng.randint(26, 31))], rng.randint(50, 66)) for _ in range(REQUESTS)]


def evicted_before_a_later_one(steps, order):
    """How often somebody left the batch to come back, while one that came later stayed in it."""
    came = {id: number for number, id in enumerate(order)}
    last = {id: number for number, step in enumerate(steps) for id in step.ids}
    count = 0
    for number, (before, after) in enumerate(pairwise(steps)):
        evicted = [id for id in {*before.ids} - {*after.ids} if last[id] > number]
        count += sum(any(came[other] > came[id] for other in after.ids) for id in evicted)
    return count
