"""Phase 5: four things that Triton itself can do in front of the ensemble, each counted."""

import sys
import time
from itertools import accumulate
from statistics import median

import numpy as np

from labkit.client import context, metrics
from labkit.client.ask import UnaryClient, tensor
from labkit.client.text_model import TextModel
from labkit.client.trtllm import LOGGED, MODEL
from labkit.errors import LabError
from labkit.evidence.records import Lane

DOOR, JOB = "door", "night_job"
JOBS, JOB_MS = 6, 40
SAME, TOO_MANY = 10, 4  # requests: of one text, beyond the queue
COUNTS, QUICK_COUNTS = (
    (8, 4),
    (4, 2),
)  # of priority 2, and of priority 1; this Triton takes 0.5 s for most waiting requests
LONG = 900  # tokens of the first answer, where no clock can stand still until the others are there
NORMAL, FIRST = 2, 1
FULL = "exceeds maximum queue size"  # Triton's words


def main() -> None:
    lab = context.load_context(sys.argv[1])
    door, inside = (TextModel.of(lab.endpoints["grpc"], name) for name in (DOOR, "ensemble"))
    parts = {
        "cache": cache(lab, door),
        "priorities": priorities(lab, door),
        "rejected": rejected(lab, door),
        "limited": limited(lab, inside),
    }
    every = [record for part in parts.values() for record in part.pop("asked") if record.ok]  # not the rejected
    lab.finish({**parts, **Lane(lab.phase, every, lab.steps(DOOR)).to_json()}, every)


def cache(lab, door):
    """Send the same text again and again: the first answer is computed, the others come from memory."""
    before, records = scrape(lab), []
    with UnaryClient(lab.endpoints["grpc"]) as client:
        for _ in range(1 + SAME):
            records.append(door.send(client, "Once upon a time there was a cache", 48))
            client.wait(records[-1], timeout=120)
    now = settled(lab, before, lambda c: c.cache_hits + c.cache_misses >= len(records))
    times = [record.latency_ms for record in records]
    found = {"hits": now.cache_hits, "misses": now.cache_misses, "same": len({record.text for record in records}) == 1}
    found |= {"first_ms": times[0], "again_ms": median(times[1:])}
    print(f"response cache: {found['hits']:.0f} hits, {found['misses']:.0f} computed", flush=True)
    return {**found, "asked": records}


def priorities(lab, door):
    """One request is inside, eight wait, and four of priority 1 follow. In which order are they executed?"""
    many, few = QUICK_COUNTS if lab.quick else COUNTS
    records = behind_one(lab, door, "priorities", many, few)
    order = [name for step in lab.steps(DOOR, records) for name in step.ids]
    usual = [record for record in records[: 1 + many] if record.id != order[0]]
    urgent = records[1 + many :]
    places = sorted(order.index(record.id) + 1 for record in urgent)
    overtaken = sum(order.index(u.id) < order.index(n.id) for u in urgent for n in usual) / (many * few)
    went = ", ".join(map(str, places))
    print(f"priorities: {few} urgent requests behind {many} others were executed as number {went}", flush=True)
    return {"usual": many, "urgent": few, "places": places, "overtaken": overtaken, "asked": records}


def rejected(lab, door):
    """Send more requests than may wait: the others are rejected at once."""
    room = lab.settings["door_max_queue_size"]
    came = room + TOO_MANY  # behind the one that is inside
    records = behind_one(lab, door, "rejected", came)
    failed = [record.error for record in records if record.error]
    others = [error for error in failed if FULL not in error.lower()]
    full = len(failed) - len(others)
    print(f"queue policy: room for {room}, {came} came, {full} rejected", *others, sep="\n  ", flush=True)
    return {"room": room, "came": came, "rejected": full, "answered": came - len(failed), "asked": records}


def limited(lab, inside):
    """Start jobs on three instances, only one of which may run. Meanwhile send the ensemble a short prompt."""
    with UnaryClient(lab.endpoints["grpc"]) as client:
        alone = inside.send(client, "A short question", 4, to_the_end=True)
        client.wait(alone, timeout=120)
        jobs = [client.send_inputs(JOB, "", [work(JOB_MS)], output="rounds") for _ in range(JOBS)]
        beside = inside.send(client, "A short question", 4, to_the_end=True)
        client.wait(*jobs, beside, timeout=120)
    edges = sorted(
        [(step.began, 1) for step in lab.steps(JOB, jobs)] + [(step.over, -1) for step in lab.steps(JOB, jobs)]
    )
    at_once = max(accumulate(change for _, change in edges))
    found = {"jobs": JOBS, "at_once": at_once, "alone_ms": alone.latency_ms, "beside_ms": beside.latency_ms}
    print(f"rate limiter: of 3 instances {at_once} ran at a time", flush=True)
    return {**found, "asked": [alone, *jobs, beside]}


def work(milliseconds):
    made = tensor("milliseconds", milliseconds, np.int32)
    made.set_shape([1])
    return made


def behind_one(lab, door, part, usual, urgent=0):
    """Have one request inside, and others behind it: first the usual ones, then the urgent. Returns all, as sent.

    The engine's clock stands still until they are there. NVIDIA's engine has none: there the first answer is long.
    """
    has_clock = lab.settings["engine"] in LOGGED
    if has_clock:
        lab.act("pause").done()
    with UnaryClient(lab.endpoints["grpc"]) as client:
        records = []
        for priority, count in ((NORMAL, 1 + usual), (FIRST, urgent)):
            for _ in range(count):
                tokens = 4 if records or has_clock else LONG
                prompt = f"I am number {len(records)} of the {part}"
                records.append(door.send(client, prompt, tokens, to_the_end=True, priority=priority))
            until(client, lambda: count_there(lab, records) >= len(records) - 1)
        if has_clock:
            lab.act("run", model=MODEL, requests=1).done(timeout=180)
        until(client, lambda: all(record.end for record in records))
    return records


def count_there(lab, records):
    """How many of these wait at the door, or have ended, which before the first is answered is a rejection."""
    return count(lab).pending + sum(record.end > 0 for record in records)


def until(client, condition):
    """Wait until a condition is true."""
    deadline = time.monotonic() + 120
    while not condition():
        client.check()
        if time.monotonic() > deadline:
            raise LabError(f"{DOOR} has not answered within 120 s", "", "labctl logs modern", code="model-silent")
        time.sleep(0.01)


def scrape(lab):
    return metrics.scrape(lab.endpoints["metrics"])


def count(lab, before=None):
    """The door's counters since ``before``, and the requests that wait now."""
    now = scrape(lab)
    return (now.since(before) if before else now).models.get(DOOR, metrics.ModelCounters())


def settled(lab, before, enough):
    """The door's counters since ``before``, as soon as they are large enough."""
    deadline = time.monotonic() + 60
    while not enough(now := count(lab, before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


if __name__ == "__main__":
    main()
