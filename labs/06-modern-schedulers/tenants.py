"""Phase 4: one tenant floods, another asks now and then. Who gets what, under each way to choose who goes first?"""

import random
import sys

from labctl.measure import context
from labctl.measure.lane import Lane
from labctl.measure.workloads.engine_stream import EngineStream, steps_of

PROMPT = 16  # tokens of every prompt
FLOOD, LIGHT = "flood", "light"
TOKENS = {FLOOD: 48, LIGHT: 16}  # of each answer
COUNTS, QUICK_COUNTS = {FLOOD: 48, LIGHT: 16}, {FLOOD: 20, LIGHT: 10}
PRIORITY = {FLOOD: 2, LIGHT: 1}


def main() -> None:
    lab = context.load(sys.argv[1])
    rng = random.Random(6)
    counts = QUICK_COUNTS if lab.quick else COUNTS
    with EngineStream(lab.endpoints["grpc"]) as stream:
        ask(stream, rng, dict.fromkeys(counts, 1))  # warm-up: what is compiled at first use
        records = ask(stream, rng, counts)
    everybody = [record for tenant in records.values() for record in tenant]
    steps = steps_of(lab, everybody)
    data = {
        tenant: {"ttft_ms": sum(r.ttft_ms for r in own) / len(own), "last_ms": max(r.latency_ms for r in own)}
        for tenant, own in records.items()
    }
    if steps:
        data |= counted(steps, {record.id: tenant for tenant, own in records.items() for record in own})
    flood, light = (data[tenant]["ttft_ms"] for tenant in (FLOOD, LIGHT))
    print(f"{lab.phase}: time to first token {flood:.0f} ms in the flood, {light:.0f} ms for the light tenant")
    lab.finish({**data, **Lane(lab.phase, everybody, steps).to_json()}, everybody)


def ask(stream, rng, counts):
    """The flood first; the light tenant's requests come right behind it on the same stream."""
    records = {
        tenant: [
            stream.ask(
                [rng.randrange(5, 1200) for _ in range(PROMPT)], TOKENS[tenant], tenant,
                tenant=tenant, request_priority=PRIORITY[tenant],
            )
            for _ in range(count)
        ]
        for tenant, count in counts.items()
    }  # fmt: skip
    stream.wait(*records[FLOOD], *records[LIGHT], timeout=300)
    return records


def counted(steps, tenants):
    """What each tenant was served from the light one's arrival to the last of its requests that had to wait.

    As the fair scheduler counts: a token of a prompt is one, a new one two. While both wait, a share is half of it all:
    how far the light tenant was behind its own in the end, and on average how far from it, in requests of the flood.
    """
    served, there = {FLOOD: [0], LIGHT: [0]}, False
    for step in steps:
        waiting = {tenants[id] for id in step.more.get("waiting", ()) if id in tenants}
        there = there or LIGHT in waiting or any(tenants.get(id) == LIGHT for id in step.ids)
        if not there:
            continue
        if waiting != {FLOOD, LIGHT} and served[LIGHT][-1]:
            break
        now = {FLOOD: 0, LIGHT: 0}
        columns = (step.more[key] for key in ("phase", "tokens", "made"))
        for id, letter, computed, made in zip(step.ids, *columns, strict=True):
            if id in tenants:
                now[tenants[id]] += (computed if letter == "p" else 0) + 2 * made
        for tenant, count in now.items():
            served[tenant].append(served[tenant][-1] + count)
    request = PROMPT + 2 * TOKENS[FLOOD]
    behind = [(flood - light) / 2 / request for flood, light in zip(served[FLOOD], served[LIGHT], strict=True)]
    # Places in the batch that come free at the same moment may all go to one tenant, whose counter rises only later.
    return {"served": served, "behind": behind[-1], "apart": sum(map(abs, behind)) / len(behind)}


if __name__ == "__main__":
    main()
