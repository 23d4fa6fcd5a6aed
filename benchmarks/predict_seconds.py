"""Seconds and decisions: policies that were never recorded, predicted from recordings and measured under load.

A recording has requests of every kind, one to eight of them in flight and with pauses, and prompts of every length, so
that the model of a step's time sees each size of a batch and of a prompt's piece. It is taken of a server with plain
settings, before the servers that are predicted and, of another one, after them. Every request counts from when it is
sent.
"""

from __future__ import annotations

import itertools
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from labctl.labs import rerun
from labctl.labs.servers import ephemeral_stack
from labctl.options import Options
from labctl.settings import parse_assignments
from labctl.stack.session import Session
from labkit.tables import format_table
from labsched.log.settings import HASH_BYTES
from labsched.replay import answer, figures, recording
from labsched.replay.fitting import fit
from labsched.replay.recording import Arrival, Recording

STACK = "inflight-batching"
BASE = {"scheduling": "fcfs", "batch_scheduler_policy": "guaranteed_no_evict", "max_num_sequences": "8"}
VOCABULARY = 1200  # ids of the models, less their special tokens
LOADS = (0.5, 0.8, 1.1)  # of the knee: the rate that the setting would serve if all requests were there at once
TARGETS = {"tokens_per_s": 0.02, "e2e_mean_ms": 0.05, "ttft_p50_ms": 0.05, "ttft_p99_ms": 0.10}
ROUNDS = 3
NOISES = 1.5  # times the noise floor are allowed, if that is more
IN_FLIGHT = (1, 2, 3, 4, 6, 8)  # of the recording, one after the other
RECORDED = 8  # requests with each of them
LONG = 6 * (256, 512, 600)  # tokens of prompts: steps as large as they can be, with a token made and without
SIZES = range(1, 257)  # tokens of prompts with one new token, in no order
SELDOM, SELDOM_RATE = 12, 3.0  # requests with pauses between them, and how many a second
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


@dataclass(frozen=True)
class Server:
    endpoint: str
    run_dir: Path

    def play(self, send: Callable[[], list[Any]]) -> Recording:
        """The server's recording of the requests that ``send`` sends."""
        began = time.monotonic()
        records = send()
        assert not any(record.error for record in records), next(r.error for r in records if r.error)
        with tempfile.TemporaryDirectory() as folder:
            file = rerun.log_of(self.run_dir, Path(folder) / "steps-played.jsonl", began, records)
            return recording.read_recording(file).since_sent({record.id: record.start for record in records}).numbered()

    def timed(self, arrivals: Sequence[Arrival], in_flight: int | None = None) -> list[Any]:
        return rerun.send_on_time(self.endpoint, arrivals, VOCABULARY, in_flight, 600.0)


@contextmanager
def serving(session: Session, settings: Mapping[str, str]) -> Iterator[Server]:
    wanted = parse_assignments(tuple(f"{key}={value}" for key, value in {**settings, "decoupled_mode": "true"}.items()))
    lab, stack = session.catalog.stack(STACK)
    with ephemeral_stack(session, lab, stack, Options("cpu", set=wanted, runtime="local", ports="auto")) as handle:
        yield Server(handle.record.scrape_endpoints["grpc"], session.workspace.folder(stack).run_dir())


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
    """A server with plain settings: LONG, RECORDED requests of every kind with each of IN_FLIGHT, SIZES and SELDOM."""
    whole, rng = requests("mixed", RECORDED * len(IN_FLIGHT), seed), random.Random(seed)

    def prompts(name: str, lengths: Sequence[int], limit: int) -> list[Arrival]:
        ask = replace(whole[0], limit=limit, made=limit)
        return [
            replace(ask, name=f"{name} {number}", prompt=tokens, prefixes=rng.randbytes(HASH_BYTES * tokens))
            for number, tokens in enumerate(lengths)
        ]

    seldom = [replace(one, name=f"seldom {one.name}") for one in requests("mixed", SELDOM, seed + 1)]
    parts = [
        (prompts("long", LONG, 1), 1),
        *((whole[n * RECORDED : (n + 1) * RECORDED], in_flight) for n, in_flight in enumerate(IN_FLIGHT)),
        (prompts("size", rng.sample(SIZES, len(SIZES)), 1), 1),
        (answer.at_rate(seldom, SELDOM_RATE), 0),
    ]
    with serving(session, {**BASE, "model": model}) as server:
        warm(server)
        return server.play(lambda: [one for part, in_flight in parts for one in server.timed(part, in_flight)])


@dataclass(frozen=True)
class Job:
    """A server with these settings, which gets these requests."""

    settings: Mapping[str, str]
    sent: Sequence[Arrival]


@dataclass
class Seen:
    """A job, by round: the figures measured, those predicted, and the model's noise floor."""

    measured: list[dict[str, float]] = field(default_factory=list)
    predicted: list[Mapping[str, float]] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)

    def means(self, name: str) -> tuple[float, float]:
        """The measured and the predicted value."""
        return fmean(one[name] for one in self.measured), fmean(one[name] for one in self.predicted)


def alternating(session: Session, model: str, first: Recording, jobs: Sequence[Job], each: int) -> list[Seen]:
    """Measures the jobs in each of ROUNDS, and predicts each from the recordings right before and after it.

    A machine's speed changes within a minute, most of all the memory's, which others may use too: so after ``each``
    jobs a server with plain settings is recorded again. Every other round goes backwards.
    """
    found = [Seen() for _ in jobs]
    before = first
    for number in range(ROUNDS):
        order = list(zip(jobs, found, strict=True))[:: -1 if number % 2 else 1]
        for group in (order[at : at + each] for at in range(0, len(order), each)):
            for job, seen in group:
                with serving(session, {**BASE, "model": model, **job.settings}) as server:
                    warm(server)
                    seen.measured.append(measured(server, job.sent))
                print(f"{job.settings}: measured, round {number + 1}", flush=True)
            after = record(session, model, seed=8)
            predictor = answer.Predictor(first, fit(before.steps, after.steps))
            for job, seen in group:
                seen.predicted.append(predictor.predict(job.settings, replace(first, arrivals=job.sent)).figures)
                seen.noise.append(predictor.model.noise)
            before = after
    return found


def measured(server: Server, sent: Sequence[Arrival]) -> dict[str, float]:
    seen = server.play(lambda: server.timed(sent))
    return figures.figures(seen.steps, {a.name: a.at for a in seen.arrivals})


def at_load(first: Recording, settings: Mapping[str, str], trace: Sequence[Arrival], load: float) -> Sequence[Arrival]:
    peak = answer.Predictor.of(first).predict(settings, replace(first, arrivals=trace)).figures["requests_per_s"]
    return answer.at_rate(trace, load * peak)


def seconds(session: Session, model: str, count: int) -> dict[str, Any]:
    """Errors on settings never recorded, at each load, beside the noise floor.

    Each run is measured on a server in each round, and the means are compared. The noise floor is how much recorded
    steps of one batch shape differ, or by how much more the prediction was off in one round than in another (the mean
    of all pairs), if that is more.
    """
    first = record(session, model, seed=7)
    what = list(itertools.product(UNSEEN, LOADS))
    jobs = [Job(UNSEEN[kind], at_load(first, UNSEEN[kind], requests(kind, count), load)) for kind, load in what]
    found: list[dict[str, Any]] = []
    for (kind, load), one in zip(what, alternating(session, model, first, jobs, 1), strict=True):
        errors, noise, off = {}, {}, {}
        for name in TARGETS:
            was, said = one.means(name)
            errors[name] = said / was - 1
            off[name] = [a[name] / b[name] for a, b in zip(one.predicted, one.measured, strict=True)]
            noise[name] = max(*one.noise, differences(off[name]))
        allowed = {name: max(target, NOISES * noise[name]) for name, target in TARGETS.items()}
        found.append({"trace": kind, "load": load, "errors": errors, "noise": noise, "allowed": allowed, "rounds": off})
    print(format_table([_said(one) for one in found], ("trace", "load", *TARGETS)))
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


def differences(values: Sequence[float]) -> float:
    """How much two of them differ, in the mean of all pairs."""
    return fmean(abs(a - b) for a, b in itertools.combinations(values, 2))


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

    Each setting is measured on a server in each round, and the mean counts. The noise of a pair is how much two runs of
    a setting differ, in the mean of all rounds: of its two settings the one that differs more.
    """
    first = record(session, model, seed=7)
    sent = at_load(first, DECIDED[-1], requests("mixed", count), 0.8)
    runs = alternating(session, model, first, [Job(one, sent) for one in DECIDED], 4)
    found: dict[str, Any] = {}
    rows, shown = [], []
    for name in JUDGED:
        values, said = zip(*(run.means(name) for run in runs), strict=True)
        noise = [differences([one[name] / was for one in run.measured]) for run, was in zip(runs, values, strict=True)]
        shown += [
            (name, *one.values(), f"{predicted:,.0f}", f"{value:,.0f}", f"{predicted / value - 1:+.1%}", f"{floor:.1%}")
            for one, predicted, value, floor in zip(DECIDED, said, values, noise, strict=True)
        ]
        every = itertools.combinations(range(len(said)), 2)
        pairs = [(a, b) for a, b in every if abs(values[a] / values[b] - 1) > max(noise[a], noise[b])]
        right = sum((said[a] < said[b]) == (values[a] < values[b]) for a, b in pairs)
        found[name] = {"pairs": len(pairs), "right": right, "noise": noise}
        good = right >= DECISIONS * len(pairs) > 0
        what = f"decisions by {name}: {len(pairs)} pairs that differ by more than the noise"
        named = f"the better one named in {right} ({right / max(1, len(pairs)):.1%})"
        rows.append((what, named, f"{DECISIONS:.0%}", "yes" if good else "NO"))
    print("\n" + format_table(shown, ("what", "order", "slots", "predicted", "measured", "error", "noise")))
    return {"decided": found, "rows": rows}
