"""Seconds and decisions: policies that were never recorded, predicted from one recording and then measured under load.

A recording has requests of every kind, one to eight of them in flight, so that the model of a step's time sees each
size of a batch and of a prompt's piece. It is taken of a server with plain settings, before the servers that are
predicted and, of another one, after them: a machine's speed changes. Every request counts from when it is sent.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.predict_steps import BASE, Server, serving
from labctl.stack.session import Session
from labkit.predict import answer, figures
from labkit.predict.recording import HASH_BYTES, Arrival, Recording
from labkit.tables import table

LOADS = (0.5, 0.8, 1.1)  # of the knee: the rate that the setting would serve if all requests were there at once
TARGETS = {"tokens_per_s": 0.02, "e2e_mean_ms": 0.05, "ttft_p50_ms": 0.05, "ttft_p99_ms": 0.10}
NOISES = 1.5  # times the noise floor are allowed, if that is more
IN_FLIGHT = (1, 2, 3, 4, 6, 8)  # of the recording, one after the other
RECORDED = 18  # requests with each of them
LONG = (256, 350, 400, 500, 600, 600)  # tokens of more prompts: as many as a step computes at most, and longer ones
KINDS = {"chat": (64, 32), "code": (120, 6), "report": (24, 60)}  # mean tokens of prompt and answer
UNSEEN = {  # by trace: another order, smaller pieces of prompts, and preemption
    "chat": {"scheduling": "shortest_first", "max_num_sequences": "4"},
    "code": {"scheduling": "fair", "max_num_tokens": "64"},
    "report": {
        "batch_scheduler_policy": "max_utilization",
        "max_num_sequences": "6",
        "max_tokens_in_paged_kv_cache": "320",
    },
}
DECIDED = [
    {"scheduling": order, "max_num_sequences": str(slots)}
    for slots in (1, 2, 4, 8)
    for order in ("fcfs", "shortest_first", "priority", "fair")
]
JUDGED = ("e2e_mean_ms", "ttft_p50_ms")  # smaller is better
DECISIONS = 0.95


def requests(kind: str, count: int, seed: int = 5) -> list[Arrival]:
    """Requests of one kind, or of all kinds in turn (``mixed``), all at 0 s."""
    rng = random.Random(f"{kind} {seed}")
    found = []
    for number in range(count):
        lengths = KINDS[kind] if kind in KINDS else list(KINDS.values())[number % len(KINDS)]
        prompt, limit = (max(1, int(rng.gauss(length, length / 4))) for length in lengths)
        prefixes = rng.randbytes(HASH_BYTES * prompt)
        tenant, priority = rng.choice("aab"), rng.randint(1, 4)
        found.append(
            Arrival(
                str(number), 0.0, 0, prompt, limit, limit, "length", tenant=tenant, priority=priority, prefixes=prefixes
            )
        )
    return found


def warm(server: Server) -> None:
    """Every size of a batch once, so that nothing is met for the first time."""
    server.timed(requests("mixed", 16, seed=6), 8)


def record(session: Session, model: str, seed: int) -> Recording:
    """A server with plain settings: LONG, then RECORDED requests of every kind with each number of IN_FLIGHT."""
    whole, rng = requests("mixed", RECORDED * len(IN_FLIGHT), seed), random.Random(seed)
    long = [
        replace(whole[0], name=f"long {number}", prompt=tokens, prefixes=rng.randbytes(HASH_BYTES * tokens))
        for number, tokens in enumerate(LONG)
    ]
    parts = [(whole[n * RECORDED : (n + 1) * RECORDED], in_flight) for n, in_flight in enumerate(IN_FLIGHT)]
    parts.insert(0, (long, 1))
    with serving(session, {**BASE, "model": model}) as server:
        warm(server)
        return server.play(lambda: [one for part, in_flight in parts for one in server.timed(part, in_flight)])


def joined(one: Recording, other: Recording) -> Recording:
    """Two recordings of the same requests as one, of whose steps a model is made."""
    return replace(one, rows=[*one.rows, *other.rows])


def measured(server: Server, sent: Sequence[Arrival]) -> dict[str, float]:
    seen = server.play(lambda: server.timed(sent))
    return figures.figures(seen.rows, {a.name: a.at for a in seen.arrivals})


def seconds(session: Session, model: str, count: int) -> dict[str, Any]:
    """Errors on settings never recorded, at each load, beside the noise floor.

    Each run is measured on two servers, and its mean counts. The noise floor is how much recorded steps of one batch
    shape differ, or those two runs, if that is more: of the server that is predicted nothing is known but its settings.
    """
    before = record(session, model, seed=7)
    sent: dict[tuple[str, float], Sequence[Arrival]] = {}
    for kind, settings in UNSEEN.items():
        trace = requests(kind, count)
        peak = answer.Predictor.of(before).predict(settings, replace(before, arrivals=trace)).figures["requests_per_s"]
        sent |= {(kind, load): answer.at_rate(trace, load * peak) for load in LOADS}
    ran: dict[tuple[str, float], list[dict[str, float]]] = {run: [] for run in sent}
    for again in range(2):
        for kind, settings in UNSEEN.items():
            with serving(session, {**BASE, "model": model, **settings}) as server:
                warm(server)
                for load in LOADS:
                    ran[kind, load].append(measured(server, sent[kind, load]))
            print(f"{kind}: measured {'again' if again else 'once'}", flush=True)
    predictor = answer.Predictor.of(joined(before, record(session, model, seed=8)))
    found: list[dict[str, Any]] = []
    for (kind, load), (seen, other) in ran.items():
        said = predictor.predict(UNSEEN[kind], replace(before, arrivals=sent[kind, load])).figures
        mean = {name: (seen[name] + other[name]) / 2 for name in TARGETS}
        twice = {name: abs(seen[name] - other[name]) / mean[name] for name in TARGETS}
        noise = {name: max(predictor.model.noise, twice[name]) for name in TARGETS}
        allowed = {name: max(target, NOISES * noise[name]) for name, target in TARGETS.items()}
        errors = {name: said[name] / mean[name] - 1 for name in TARGETS}
        found.append({"trace": kind, "load": load, "errors": errors, "noise": noise, "allowed": allowed})
    print(table([_said(one) for one in found], ("trace", "load", *TARGETS)))
    rows = []
    for name, target in TARGETS.items():
        good = sum(abs(one["errors"][name]) <= one["allowed"][name] for one in found)
        worst = max((one["errors"][name] for one in found), key=abs)
        rows.append(
            (
                f"seconds, {name}: {len(found)} runs",
                f"{good} within, the largest error {worst:+.1%}",
                f"{target:.0%} or {NOISES} times the noise floor",
                "yes" if good == len(found) else "NO",
            )
        )
    return {"runs": found, "rows": rows}


def _said(one: Mapping[str, Any]) -> tuple[str, ...]:
    """Each error beside its noise floor; a mark follows one that is larger than allowed."""
    allowed, noise = one["allowed"], one["noise"]
    errors = (
        f"{error:+.1%} (noise {noise[name]:.1%}){'' if abs(error) <= allowed[name] else ' !'}"
        for name, error in one["errors"].items()
    )
    return one["trace"], f"{one['load']:.1f}", *errors


def decisions(session: Session, model: str, count: int) -> dict[str, Any]:
    """Of each pair of settings: is the better one named, where the measured difference exceeds the noise?

    The noise is how much the first and the last setting differ when they are measured again, after the others.
    """
    before = record(session, model, seed=7)
    trace = requests("mixed", count)
    plain = answer.Predictor.of(before)
    peak = plain.predict(DECIDED[-1], replace(before, arrivals=trace)).figures["requests_per_s"]
    sent = answer.at_rate(trace, 0.8 * peak)
    seen: list[dict[str, float]] = []
    for one in [*DECIDED, DECIDED[0], DECIDED[-1]]:
        with serving(session, {**BASE, "model": model, **one}) as server:
            warm(server)
            seen.append(measured(server, sent))
        print(f"{one}: measured", flush=True)
    predictor = answer.Predictor.of(joined(before, record(session, model, seed=8)))
    said = [predictor.predict(one, replace(before, arrivals=sent)).figures for one in DECIDED]
    for one, predicted, was in zip(DECIDED, said, seen, strict=False):
        print(f"{one}: " + ", ".join(f"{name} {predicted[name] / was[name] - 1:+.1%}" for name in JUDGED))
    found: dict[str, Any] = {}
    rows = []
    for name in JUDGED:
        values = [one[name] for one in seen]
        noise = max(abs(values[0] / values[-2] - 1), abs(values[len(said) - 1] / values[-1] - 1))
        every = itertools.combinations(range(len(said)), 2)
        pairs = [(a, b) for a, b in every if abs(values[a] / values[b] - 1) > noise]
        right = sum((said[a][name] < said[b][name]) == (values[a] < values[b]) for a, b in pairs)
        found[name] = {"pairs": len(pairs), "right": right, "noise": noise}
        good = right >= DECISIONS * len(pairs) > 0
        what = f"decisions by {name}: {len(pairs)} pairs that differ by more than the noise ({noise:.1%})"
        named = f"the better one named in {right} ({right / max(1, len(pairs)):.1%})"
        rows.append((what, named, f"{DECISIONS:.0%}", "yes" if good else "NO"))
    return {"decided": found, "measured": seen, "predicted": said, "rows": rows}
