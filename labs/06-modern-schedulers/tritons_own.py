"""Phase 5: four things that Triton itself can do in front of the ensemble, each counted."""

import sys
import time
from itertools import accumulate
from statistics import median

import numpy as np

from labkit.client import context, metrics
from labkit.client.ask import UnaryClient, tensor
from labkit.client.text_model import TextModel
from labkit.errors import LabError
from labkit.evidence.records import Lane

DOOR, JOB = "door", "night_job"
JOBS, JOB_MS = 6, 40
SAME, TOO_MANY = 10, 4  # requests: of one text, beyond the queue
COUNTS, QUICK_COUNTS = (
    (8, 4),
    (4, 2),
)  # of priority 2, and of priority 1; this Triton takes 0.5 s for most waiting requests
LENGTHS = (200, 400, 800, 900)  # tokens of the first request: the others must all arrive before it is done
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
    ahead, usual, urgent = behind_one(lab, door, [NORMAL] * many + [FIRST] * few)
    order = [name for step in lab.steps(DOOR, [ahead]) for name in step.ids]
    places = sorted(order.index(record.id) + 1 for record in urgent)
    overtaken = sum(order.index(u.id) < order.index(n.id) for u in urgent for n in usual) / (many * few)
    went = ", ".join(map(str, places))
    print(f"priorities: {few} urgent requests behind {many} others were executed as number {went}", flush=True)
    return {"usual": many, "urgent": few, "places": places, "overtaken": overtaken, "asked": [ahead, *usual, *urgent]}


def rejected(lab, door):
    """Send more requests than may wait: the others are rejected at once."""
    room = lab.settings["door_max_queue_size"]
    ahead, usual, _ = behind_one(lab, door, [NORMAL] * (room + TOO_MANY), too_many=True)
    failed = [record.error for record in usual if record.error]
    others = [error for error in failed if FULL not in error.lower()]
    full = len(failed) - len(others)
    print(f"queue policy: room for {room}, {len(usual)} came, {full} rejected", *others, sep="\n  ", flush=True)
    return {
        "room": room,
        "came": len(usual),
        "rejected": full,
        "answered": len(usual) - len(failed),
        "asked": [ahead, *usual],
    }


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


def behind_one(lab, door, wanted, too_many=False):
    """Send one long request, and others with these priorities behind it, all before it is done.

    Tries again with a longer request if one of the others was rejected, unless ``too_many``: on a busy machine the long
    request may still be in the door's queue, and take the place of one of them.
    """
    for length in LENGTHS:
        with UnaryClient(lab.endpoints["grpc"]) as client:
            ahead = door.send(client, f"Once upon a time, {length} tokens ago", length, to_the_end=True)
            while count(lab).pending > 0 and not ahead.end:  # it is inside: the queue is empty
                time.sleep(0.01)
            records = [door.send(client, f"I am number {n} of {length}", 4, priority=p) for n, p in enumerate(wanted)]
            here = False
            while not here and not ahead.end:
                here = count(lab).pending + sum(bool(record.error) for record in records) >= len(wanted)
            ended(client, [ahead, *records])
        if here and (too_many or not any(record.error for record in records)):
            return (
                ahead,
                [r for r, p in zip(records, wanted, strict=True) if p == NORMAL],
                [r for r, p in zip(records, wanted, strict=True) if p == FIRST],
            )
    raise LabError("the requests were never all there", "the machine is very busy", code="requests-missing")


def ended(client, records):
    """Wait until all requests have ended, some of them with an error."""
    deadline = time.monotonic() + 120
    while not all(record.end for record in records):
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
