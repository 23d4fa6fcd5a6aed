"""Why prompt tokens did not come from the prefix cache: never seen, evicted, or still being computed by another.

A recording has a keyed hash of each sequence up to the end of each block, so that equal beginnings are equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from labsched.explain.causes import ExplainedRequest
from labsched.log.settings import HASH_BYTES, SchedulerSettings


@dataclass(frozen=True)
class PrefixUse:
    """Where the prompt tokens of a server came from, of the requests whose hashes are recorded.

    Attributes:
        tokens: of the prompts of such requests.
        cached: tokens that came from the cache.
        evicted: tokens in it once, and gone when they were needed again.
        unfinished: tokens that another request was still computing.
        compared: prompts of at least one block that have an earlier one to be compared with.
        new_at_once: of these, the prompts that differ from every earlier one in their first block.
        differ_after: tokens that the others have in common with an earlier prompt, in the median; None: there are none.
    """

    tokens: int
    cached: int
    evicted: int
    unfinished: int
    compared: int
    new_at_once: int
    differ_after: int | None


def prefix_use(
    requests: Sequence[ExplainedRequest], settings: SchedulerSettings, every: Sequence[ExplainedRequest] | None = None
) -> PrefixUse | None:
    """How the prefix cache was used; None: the recording has no hashes.

    Args:
        every: the server's requests, where ``requests`` are some of them: they were in the cache too.
    """
    size, counted = settings.block_size, set(map(id, requests))
    seen: dict[tuple[str | None, bytes], float] = {}  # when each block, with all before it, was computed first
    tokens = cached = evicted = unfinished = compared = new_at_once = 0
    common: list[int] = []
    engines: set[str | None] = set()  # that have computed a prompt
    for request in sorted((r for r in every or requests if r.joined is not None), key=lambda r: r.joined or 0.0):
        arrival = request.arrival
        if not arrival.prefixes or request.joined is None:
            continue
        blocks = hashed_blocks(arrival.prefixes, size)
        useful = blocks[: (arrival.prompt - 1) // size]  # the last token is always computed
        if id(request) in counted:
            known = 0
            for block in useful:
                if (request.engine, block) not in seen:
                    break
                known += 1
            for block in useful[request.cached // size : known]:
                if seen[request.engine, block] <= request.joined:
                    evicted += size
                else:
                    unfinished += size
            if useful and request.engine in engines:
                compared += 1
                new_at_once += not known
                common += [known * size] if known else []
            tokens, cached = tokens + arrival.prompt, cached + request.cached
        computed = request.answered_at if request.answered_at is not None else float("inf")
        engines.add(request.engine)
        for block in blocks:
            key = request.engine, block
            seen[key] = min(seen.get(key, computed), computed)
    if not tokens:
        return None
    after = int(median(common)) if common else None
    return PrefixUse(tokens, cached, evicted, unfinished, compared, new_at_once, after)


def hashed_blocks(prefixes: bytes, size: int) -> list[bytes]:
    """The hashes of each full block."""
    width = size * HASH_BYTES
    return [prefixes[at : at + width] for at in range(0, len(prefixes) - width + 1, width)]
