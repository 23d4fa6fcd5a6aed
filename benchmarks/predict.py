"""What `labctl predict` gets right: its steps on real servers, its seconds under load, and how fast it answers."""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labctl.labs import rerun
from labctl.labs.servers import ephemeral
from labctl.listener import Silent
from labctl.manifest.settings import parse_assignments
from labctl.runtimes.record import Choices, UpOptions
from labctl.stack.session import Session
from labkit.predict import answer, figures, recording, replay
from labkit.predict.recording import HASH_BYTES, Arrival, Recording
from labkit.tables import table
from labserve.inflight.recording import WORDS

STACK = "inflight-batching"
EACH = 10  # workloads on one server, one after the other
APART = 10_000  # steps between them: the server is idle
LOADS = (0.5, 0.8, 1.1)  # of the knee
ORDERS = ("fcfs", "shortest_first", "priority", "fair")
BASE = {"scheduling": "fcfs", "batch_scheduler_policy": "guaranteed_no_evict", "max_num_sequences": "8"}
NEVER = {**BASE, "scheduling": "shortest_first", "max_num_sequences": "4"}  # predicted, then run
TOLD = ("tokens_per_s", "e2e_mean_ms", "ttft_p50_ms", "ttft_p99_ms")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workloads", type=int, default=40, help="predict: workloads whose steps are compared")
    parser.add_argument("--shape", default="random:tiny-llama", help="predict: the model whose seconds are predicted")
    parser.add_argument("--requests", type=int, default=60, help="predict: requests of each trace of seconds")


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """The load average is of the machine before and after: seconds need a quiet one, steps do not."""
    session, load = Session.open(Silent()), [os.getloadavg()[0]]
    found: dict[str, Any] = {"replay": speed(), "steps": steps(session, asked.workloads)}
    found["seconds"] = seconds(session, asked.shape, asked.requests)
    load.append(os.getloadavg()[0])
    print(f"load average before {load[0]:.1f}, after {load[1]:.1f}")
    return {**found, "load": load}


@dataclass(frozen=True)
class Server:
    endpoint: str
    run_dir: Path

    def play(self, arrivals: Sequence[Arrival], vocabulary: int, pinned: bool) -> Recording:
        """Send the requests, by steps or by time, and read what the server recorded of them."""
        began = time.monotonic()
        if pinned:
            records = rerun.pinned(self.endpoint, self.run_dir, arrivals, vocabulary)
        else:
            records = rerun.timed(self.endpoint, arrivals, vocabulary, 0, 600.0)
        with tempfile.TemporaryDirectory() as folder:
            file = rerun.log_of(self.run_dir, Path(folder) / "steps-played.jsonl", began, records)
            return recording.read(file).numbered()


@contextmanager
def serving(session: Session, settings: Mapping[str, str], model: str) -> Iterator[Server]:
    wanted = parse_assignments(
        tuple(f"{key}={value}" for key, value in {**settings, "model": model, "decoupled_mode": "true"}.items())
    )
    lab, stack = session.catalog.stack(STACK)
    with ephemeral(session, lab, stack, UpOptions(Choices("cpu", wanted), ports="auto")) as handle:
        yield Server(handle.record.scrape_endpoints["grpc"], session.workspace.folder(stack).run_dir())


# -- steps ------------------------------------------------------------------------------------------------------------


def steps(session: Session, count: int) -> dict[str, Any]:
    """Random workloads pinned to steps, under random settings that were never recorded: steps that are as predicted."""
    same = number = compared = 0
    began = time.monotonic()
    while number < count:
        rng = random.Random(number)
        arrivals = workloads(rng, min(EACH, count - number))
        settings = chosen(rng, number // EACH)
        with serving(session, BASE, "random:tiny-llama") as server:
            base = server.play(arrivals, VOCABULARY, pinned=True)
        pins = [replace(one, after=pin.after) for one, pin in zip(base.arrivals, arrivals, strict=True)]
        predicted = replay.replay(replace(base, arrivals=pins), replay.changed(base.settings, settings)).rows
        with serving(session, settings, "random:tiny-llama") as server:
            seen = server.play(pins, VOCABULARY, pinned=True).rows
        parting = figures.parting(predicted, seen)
        good = len(seen) if parting is None else parting[0] - 1
        same, compared, number = same + good, compared + len(seen), number + min(EACH, count - number)
        print(f"{number} workloads: {same:,} of {compared:,} steps as predicted; {settings}", flush=True)
    each = (time.monotonic() - began) / count
    print(f"{each:.1f} s a workload")
    return {"workloads": count, "steps": compared, "as_predicted": same, "seconds_each": each}


VOCABULARY = 2990  # of random:tiny-llama, less its special tokens


def chosen(rng: random.Random, number: int) -> dict[str, str]:
    chunked = rng.random() < 0.7
    return {
        "scheduling": ORDERS[number % len(ORDERS)],
        "batch_scheduler_policy": ("max_utilization", "guaranteed_no_evict")[number // len(ORDERS) % 2],
        "max_num_sequences": str(rng.randint(3, 6)),
        "max_tokens_in_paged_kv_cache": str(32 * rng.randint(6, 8)),
        "enable_chunked_context": str(chunked).lower(),
        "max_num_tokens": str(rng.choice([16, 33, 64, 100]) if chunked else 256),
    }


def workloads(rng: random.Random, count: int, requests: int = 9) -> list[Arrival]:
    found: list[Arrival] = []
    for number in range(count):
        for after in sorted(rng.randint(0, 12) for _ in range(requests)):
            prompt, limit = rng.choice([1, 7, 30, 90, 120]), rng.choice([1, 5, 12, 40, 60])
            found.append(
                Arrival(
                    str(len(found)),
                    0.0,
                    APART * number + after,
                    prompt,
                    limit,
                    limit,
                    "length",
                    tenant=rng.choice("ab"),
                    priority=rng.randint(1, 4),
                    prefixes=rng.randbytes(HASH_BYTES * prompt),
                )
            )
    return found


# -- seconds ----------------------------------------------------------------------------------------------------------


def traces(count: int) -> dict[str, list[Arrival]]:
    """Three kinds of requests: chats, code (long prompts, short answers), and reports (long answers)."""
    rng = random.Random(5)
    sizes = {"chat": (64, 32), "code": (120, 6), "report": (24, 60)}
    found: dict[str, list[Arrival]] = {name: [] for name in sizes}
    for name, lengths in sizes.items():
        for number in range(count):
            prompt, limit = (max(1, int(rng.gauss(length, length / 4))) for length in lengths)
            prefixes = rng.randbytes(HASH_BYTES * prompt)
            found[name].append(Arrival(str(number), 0.0, 0, prompt, limit, limit, "length", prefixes=prefixes))
    return found


def seconds(session: Session, model: str, count: int) -> list[dict[str, Any]]:
    """Errors on settings never recorded, at each load, beside the recording's noise floor."""
    found: list[dict[str, Any]] = []
    for name, trace in traces(count).items():
        with serving(session, BASE, model) as server:
            server.play(trace[:8], VOCABULARY, pinned=False)  # warm
            recorded = server.play(trace, VOCABULARY, pinned=False)
        predictor = answer.Predictor.of(recorded)
        peak = predictor.predict(NEVER).figures["requests_per_s"]
        with serving(session, NEVER, model) as server:
            server.play(trace[:8], VOCABULARY, pinned=False)
            for load in LOADS:
                sent = answer.at_rate(trace, load * peak)
                seen = server.play(sent, VOCABULARY, pinned=False)
                measured = figures.figures(seen.rows, {a.name: a.at for a in seen.arrivals})
                said = predictor.predict(NEVER, replace(recorded, arrivals=seen.arrivals)).figures
                errors = {key: said[key] / measured[key] - 1 for key in TOLD}
                found.append({"trace": name, "load": load, "errors": errors, "noise": predictor.model.noise})
    rows = [
        (f["trace"], f"{f['load']:.1f}", *(f"{f['errors'][key]:+.1%}" for key in TOLD), f"{f['noise']:.1%}")
        for f in found
    ]
    print(table(rows, ("trace", "load", *TOLD, "noise floor"), right=range(1, 7)))
    return found


# -- how fast ---------------------------------------------------------------------------------------------------------


def speed() -> dict[str, float]:
    """Ten recorded minutes, replayed: steps of 15 ms, half a chat of 60 prompt and 40 output tokens a second a slot."""
    words = {**dict.fromkeys(WORDS, ""), **BASE, "gpt_model_type": "inflight_fused_batching"}
    settings = recording.Settings(words, 200, 32, 256, 2048, 3000)
    rng, now = random.Random(1), 0.0
    arrivals: list[Arrival] = []
    while now < 600.0:
        limit = rng.randint(10, 70)
        arrivals.append(Arrival(str(len(arrivals)), now, 0, rng.randint(10, 110), limit, limit, "length"))
        now += rng.expovariate(4.0)
    took = []
    for _ in range(3):
        began = time.process_time()
        done = replay.replay(Recording(settings, arrivals), settings, lambda row: 0.015)
        took.append(time.process_time() - began)
    print(
        f"{done.rows[-1].over:.0f} s of {len(arrivals):,} requests, {len(done.rows):,} steps: replayed in "
        f"{statistics.median(took):.2f} s of processor time"
    )
    return {"recorded_s": done.rows[-1].over, "steps": len(done.rows), "replay_s": statistics.median(took)}
