"""Sixteen requests on four places: no place empty while somebody waits, fewer steps, and the tokens of each alone."""

from itertools import pairwise

PLACES = 4
STATIC = "a place stayed empty until the whole batch was done, although somebody waited: that is static batching."


def check(trial):
    requests = requests_of(trial.rng)
    records, steps = trial.queued(requests)
    largest = max(step.batch for step in steps)
    trial.expect(
        "requests in one step, at most",
        f"{PLACES}",
        largest,
        largest <= PLACES,
        "more requests ran than there are places: those that run already have theirs.",
    )
    limits = [limit for _, limit in requests]
    static = sum(max(limits[n : n + PLACES]) for n in range(0, len(limits), PLACES))
    trial.expect(
        "joined while others ran",
        "more than 0",
        joined_beside_others(steps),
        joined_beside_others(steps) > 0,
        STATIC,
    )
    empty = empty_places(steps)
    trial.expect(
        "steps with an empty place while somebody waited",
        "0",
        empty,
        empty == 0,
        "a place stayed empty for some steps, although somebody waited: whoever waits may take it at the next step.",
    )
    trial.expect(
        f"steps, where static batching takes {static}",
        f"at most {0.7 * static:.0f}",
        len(steps),
        len(steps) <= 0.7 * static,
        "hardly fewer steps than a static batch takes: does everybody join as soon as there is a place?",
    )
    chosen = trial.rng.sample(range(len(requests)), 2)
    alone = [trial.queued([requests[n]])[0][0].text for n in chosen]
    right = sum(records[n].text == text for n, text in zip(chosen, alone, strict=True))
    trial.expect(
        "answers as the same request has them alone",
        "2",
        right,
        right == 2,
        "a request has other tokens in a batch than alone: the scheduler must not touch what the requests hold.",
    )


def requests_of(rng):
    """Of every four requests one has a long answer, so that three places fall empty early."""
    limits = []
    for _ in range(4):
        four = [rng.randint(36, 48), *(rng.randint(4, 10) for _ in range(3))]
        rng.shuffle(four)
        limits += four
    return [([rng.randint(5, 2000) for _ in range(rng.randint(4, 12))], limit) for limit in limits]


def joined_beside_others(steps):
    """How many joined a batch in which somebody stayed."""
    pairs = pairwise(steps)
    return sum(len({*after.ids} - {*before.ids}) for before, after in pairs if {*before.ids} & {*after.ids})


def empty_places(steps):
    """Steps with a place to spare, before the last request has joined."""
    seen, last = set(), 0
    for number, step in enumerate(steps):
        if {*step.ids} - seen:
            seen, last = seen | {*step.ids}, number
    return sum(step.batch < PLACES for step in steps[:last])
