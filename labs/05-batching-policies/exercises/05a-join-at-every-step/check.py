"""Sixteen requests in four slots: no slot empty while a request waits, as few steps as foreseen, the tokens of each."""

import heapq
from itertools import pairwise

SLOTS = 4
OTHERS = 10  # loads that are not served: lengths and slots alone
IN_BATCHES = (
    "static batching takes other steps: each batch runs until its longest answer is done, then the next begins."
)
IN_FLIGHT = "in-flight batching takes other steps: the next request in the queue takes the slot that is free first."
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
    static, _ = counted(limits, SLOTS)
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
    loads = [(limits, SLOTS), *(drawn(trial.rng) for _ in range(OTHERS))]
    expected = [(static, len(steps)), *(counted(*load) for load in loads[1:])]
    said = [tuple(trial.call("predict.py", "steps", *load)) for load in loads]
    for place, name, sentence in ((0, "static", IN_BATCHES), (1, "in-flight", IN_FLIGHT)):
        right = sum(one[place] == other[place] for one, other in zip(said, expected, strict=True))
        trial.expect(f"foreseen, {name}: loads", f"{len(loads)}", right, right == len(loads), sentence)
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


def drawn(rng):
    """The answers of a load, and slots."""
    return [rng.randint(1, 40) for _ in range(rng.randint(5, 30))], rng.randint(2, 6)


def counted(answers, slots):
    """Steps with static and with in-flight batching, if all requests are there at the beginning."""
    free = [0] * slots  # after which step each slot is free
    for answer in answers:
        heapq.heapreplace(free, free[0] + answer)
    return sum(max(answers[n : n + slots]) for n in range(0, len(answers), slots)), max(free)


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
