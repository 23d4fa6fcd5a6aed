"""Sixteen requests in four slots: no slot empty while a request waits, fewer steps, and the tokens of each alone."""

from itertools import pairwise

SLOTS = 4
STATIC = "a slot stayed empty until the whole batch was done, although requests waited: that is static batching."


def check(trial):
    requests = requests_of(trial.rng)
    records, steps = trial.send_queued(requests)
    largest = max(step.batch for step in steps)
    trial.expect(
        "requests in one step, at most",
        f"{SLOTS}",
        largest,
        largest <= SLOTS,
        "more requests ran than there are slots: each running request holds one already.",
    )
    limits = [limit for _, limit in requests]
    static = sum(max(limits[n : n + SLOTS]) for n in range(0, len(limits), SLOTS))
    trial.expect(
        "joined while others ran", "more than 0", joined_beside_others(steps), joined_beside_others(steps) > 0, STATIC
    )
    empty = empty_slots(steps)
    trial.expect(
        "steps with an empty slot while a request waited",
        "0",
        empty,
        empty == 0,
        "a slot stayed empty for some steps, although requests waited: a waiting request may take it at the next step.",
    )
    trial.expect(
        f"steps, where static batching takes {static}",
        f"at most {0.7 * static:.0f}",
        len(steps),
        len(steps) <= 0.7 * static,
        "hardly fewer steps than a static batch takes: does each request join as soon as there is a slot?",
    )
    chosen = trial.rng.sample(range(len(requests)), 2)
    alone = [trial.send_queued([requests[n]])[0][0].text for n in chosen]
    right = sum(records[n].text == text for n, text in zip(chosen, alone, strict=True))
    trial.expect(
        "answers as the same request has them alone",
        "2",
        right,
        right == 2,
        "a request has other tokens in a batch than alone: the scheduler must not touch what the requests hold.",
    )


def requests_of(rng):
    """Requests of which every fourth has a long answer, so that three slots become empty early."""
    limits = []
    for _ in range(4):
        four = [rng.randint(36, 48), *(rng.randint(4, 10) for _ in range(3))]
        rng.shuffle(four)
        limits += four
    return [([rng.randint(5, 2000) for _ in range(rng.randint(4, 12))], limit) for limit in limits]


def joined_beside_others(steps):
    """How many joined a batch in which another request stayed."""
    pairs = pairwise(steps)
    return sum(len({*after.ids} - {*before.ids}) for before, after in pairs if {*before.ids} & {*after.ids})


def empty_slots(steps):
    """Steps with an empty slot before the last request has joined."""
    seen, last = set(), 0
    for number, step in enumerate(steps):
        if {*step.ids} - seen:
            seen, last = seen | {*step.ids}, number
    return sum(step.batch < SLOTS for step in steps[:last])
