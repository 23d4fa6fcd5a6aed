"""Phase 4: one tenant floods, another sends little. What does each get under each scheduling policy?

The clock stands still until all requests are waiting, so the policy alone decides which one joins.
"""

import random
import sys

from labkit.client import context
from labkit.client.trtllm import MODEL, EngineStream, steps_of
from labkit.evidence.records import Lane

PROMPT = 16  # tokens of every prompt
FLOOD, LIGHT = "flood", "light"
TOKENS = {FLOOD: 48, LIGHT: 16}  # of each answer
COUNTS, QUICK_COUNTS = {FLOOD: 48, LIGHT: 16}, {FLOOD: 20, LIGHT: 10}
PRIORITY = {FLOOD: 2, LIGHT: 1}


def main() -> None:
    lab = context.load_context(sys.argv[1])
    rng = random.Random(6)
    counts = QUICK_COUNTS if lab.quick else COUNTS
    with EngineStream(lab.endpoints["grpc"]) as stream:
        warm_up = ask(stream, rng, dict.fromkeys(counts, 1))  # what is compiled at first use
        stream.wait(*warm_up[FLOOD], *warm_up[LIGHT], timeout=300)
        lab.act("pause").done()
        records = ask(stream, rng, counts)
        every = [record for tenant in records.values() for record in tenant]
        lab.act("run", model=MODEL, requests=len(every)).done(timeout=180)
        stream.wait(*every, timeout=300)
    tenants = {record.id: tenant for tenant, own in records.items() for record in own}
    steps = [step for step in steps_of(lab, every) if tenants.keys() & {*step.ids}]
    opened = steps[0].began
    data = {
        tenant: {
            "ttft_ms": 1e3 * sum(r.responses[0][0] - opened for r in own) / len(own),
            "last_ms": 1e3 * max(r.responses[-1][0] - opened for r in own),
        }
        for tenant, own in records.items()
    }
    data |= counted(steps, tenants)
    flood, light = (data[tenant]["ttft_ms"] for tenant in (FLOOD, LIGHT))
    print(f"{lab.phase}: time to first token {flood:.0f} ms in the flood, {light:.0f} ms for the light tenant")
    lab.finish({**data, **Lane(lab.phase, every, steps).to_json()}, every)


def ask(stream, rng, counts):
    """Send the flood, and right behind it the light tenant's requests on the same stream."""
    return {
        tenant: [
            stream.ask(
                [rng.randrange(5, 1200) for _ in range(PROMPT)],
                TOKENS[tenant],
                tenant,
                tenant=tenant,
                request_priority=PRIORITY[tenant],
            )
            for _ in range(count)
        ]
        for tenant, count in counts.items()
    }


def counted(steps, tenants):
    """The tokens that each tenant was served while both waited, from the moment when the first request could join.

    As the fair scheduler counts: a token of a prompt is one, a new one two. A share is half of it all: how far the
    light tenant was behind its own in the end, and how far from it at most, in requests of the flood.
    """
    served = {FLOOD: [0], LIGHT: [0]}
    for step in steps:
        if {tenants[id] for id in step.waiting if id in tenants} != {FLOOD, LIGHT}:
            break
        now = {FLOOD: 0, LIGHT: 0}
        columns = (step.phase, step.tokens, step.made)
        for id, letter, computed, made in zip(step.ids, *columns, strict=True):
            if id in tenants:
                now[tenants[id]] += (computed if letter == "p" else 0) + 2 * made
        for tenant, count in now.items():
            served[tenant].append(served[tenant][-1] + count)
    request = PROMPT + 2 * TOKENS[FLOOD]
    behind = [(flood - light) / 2 / request for flood, light in zip(served[FLOOD], served[LIGHT], strict=True)]
    return {"served": served, "behind": behind[-1], "apart": max(map(abs, behind))}


if __name__ == "__main__":
    main()
