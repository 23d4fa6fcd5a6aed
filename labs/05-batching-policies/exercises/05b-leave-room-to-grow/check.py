"""Requests in a small and in a large cache: few preemptions, the right ones, a fair batch, and each request answered.

There are two sizes, because a number that is right for one size is not a rule: two or three requests run at a time in
the small cache, eight in the large one. Other sizes are tried on a counting engine, until one refutes the rule.
"""

from itertools import pairwise
from typing import NamedTuple

from labkit.evidence import bounds

MODEL, BLOCKS = "tensorrt_llm", "max_tokens_in_paged_kv_cache"
BLOCK_SIZE = 32
THRASHES = (
    "the cache thrashes: a new request takes the blocks that the others need for their next tokens, and one must "
    "leave again."
)
UNFAIR = "a request was preempted while a later one stayed: the last one admitted makes room."
IDLE = "hardly any request runs: so much is kept free that the cache is idle."
SHORT = "an answer has too few tokens: a preempted request must come back."
NO_RULE = (
    "it holds for the caches of 8 and 32 blocks and not for another size, on the requests shown: what must stay free "
    "depends on how many requests run."
)

UNUSED = (
    "answers end before their limit, but blocks stay free for their whole limit: running requests need room for their "
    "next tokens only."
)


class Cache(NamedTuple):
    """A cache size, the requests sent to it, and the limits that a rule for this size meets."""

    blocks: int
    requests: int
    answers: tuple[int, int]
    preemptions: int  # at most
    mean: float  # requests in a step, at least


SMALL = Cache(8, 20, (50, 66), 18, 2.1)
LARGE = Cache(32, 64, (90, 130), 34, 5.0)


def check(trial):
    now = int(trial.parameters(MODEL)[BLOCKS])
    asked = {cache: requests_of(trial.rng, cache) for cache in (SMALL, LARGE)}
    found = {}
    for cache in sorted(asked, key=lambda cache: cache.blocks * BLOCK_SIZE != now):  # the server's present size first
        if cache.blocks * BLOCK_SIZE != int(trial.parameters(MODEL)[BLOCKS]):
            trial.load_with(MODEL, **{BLOCKS: str(cache.blocks * BLOCK_SIZE)})
        found[cache] = trial.send_queued(asked[cache])
    for cache in asked:
        preemptions = sum(len(step.evicted) for step in found[cache][1])
        most = cache.preemptions
        trial.expect(
            f"preemptions, {cache.blocks} blocks", f"at most {most}", preemptions, preemptions <= most, THRASHES
        )
    for cache in asked:
        records, steps = found[cache]
        unfair = preempted_before_a_later_one(steps, [record.id for record in records])
        trial.expect(f"preempted before a later one, {cache.blocks} blocks", "0", unfair, unfair == 0, UNFAIR)
    for cache in asked:
        steps = found[cache][1]
        mean = sum(step.batch for step in steps) / len(steps)
        name = f"requests in a step on average, {cache.blocks} blocks"
        trial.expect(name, f"at least {cache.mean}", f"{mean:.2f}", mean >= cache.mean, IDLE)
    for cache, requests in asked.items():
        records = found[cache][0]
        whole = sum(record.tokens == limit for record, (_, limit) in zip(records, requests, strict=True))
        trial.expect(
            f"answered whole, {cache.blocks} blocks", f"{cache.requests}", whole, whole == cache.requests, SHORT
        )
    found = trial.call(bounds.__file__, "search", str(trial.folder), "grows", trial.rng.randrange(10**6))
    trial.expect(
        "a cache of another size that refutes it",
        "none",
        in_words(found),
        found is None,
        UNUSED if found and found.get("limit") else NO_RULE,
    )


def in_words(found):
    """The search's counterexample in words."""
    if not found or "error" in found:
        return found["error"] if found else "none"
    what = {
        bounds.STUCK: "nothing runs any more",
        bounds.PREEMPTIONS: "{measured} preemptions, of at most {most:g}",
        bounds.STEPS: "{measured} steps, of at most {most:g}",
    }[found["what"]].format(**found)
    requests = ", ".join(f"{prompt}+{answer}" for _, prompt, answer in found["requests"])
    limit = f", each may have {found['limit']}" if found["limit"] else ""
    return f"{found['blocks']} blocks, {what}\n{len(found['requests'])} requests (prompt+answer{limit}): {requests}"


def requests_of(rng, cache):
    """Requests whose prompt fills most of a block, and whose answer fills two to four more."""
    return [
        ([rng.randint(5, 2000) for _ in range(rng.randint(26, 31))], rng.randint(*cache.answers))
        for _ in range(cache.requests)
    ]


def preempted_before_a_later_one(steps, order):
    """How often a request was preempted while a later one stayed in the batch."""
    came = {id: number for number, id in enumerate(order)}
    last = {id: number for number, step in enumerate(steps) for id in step.ids}
    count = 0
    for number, (before, after) in enumerate(pairwise(steps)):
        preempted = [id for id in {*before.ids} - {*after.ids} if last[id] > number]
        count += sum(any(came[other] > came[id] for other in after.ids) for id in preempted)
    return count
