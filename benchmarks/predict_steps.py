"""Steps: random workloads under random settings on real Triton servers, each step as it was predicted before.

The server is the whole local runtime: Triton, `tensorrt_llm`'s model.py, the scheduler and a model that computes. The
clock pins each request to a step; a client sends it over gRPC. The prediction is made before the server is up, from the
requests as a recording has them.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labctl.labs import rerun
from labctl.labs.servers import ephemeral_stack
from labctl.manifest.settings import parse_assignments
from labctl.options import Options
from labctl.runtimes.layers import layer
from labctl.stack.session import Session
from labkit.predict import vllm as vllms
from labsched import figures, recording, replay
from labsched.recording import HASH_BYTES, Arrival, Recording, SchedulerSettings
from labsched.replay import ReplayResult

HELPERS = str(Path(__file__).parents[1] / "tests" / "helpers")
STACK = "inflight-batching"
EACH = 40  # workloads on one server, one after the other
APART = 10_000  # steps between them: the server is idle
ORDERS = ("fcfs", "shortest_first", "priority", "fair")
POLICIES = ("max_utilization", "guaranteed_no_evict")
BASE = {"scheduling": "fcfs", "batch_scheduler_policy": "guaranteed_no_evict", "max_num_sequences": "8"}
OURS, VLLM = {"model": "random:tiny-llama"}, {"model": "shipped:tiny-llama", "engine": "vllm", "exact": "true"}
VOCABULARY = 1200  # ids of both models, less their special tokens


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

    def pinned(self, arrivals: Sequence[Arrival]) -> Recording:
        sys.path.append(HELPERS)
        from pinned_requests import send_step_by_step

        return self.play(lambda: send_step_by_step(self.endpoint, self.run_dir, arrivals, VOCABULARY))

    def timed(self, arrivals: Sequence[Arrival], in_flight: int = 0) -> list[Any]:
        return rerun.send_on_time(self.endpoint, arrivals, VOCABULARY, in_flight, 600.0)


@contextmanager
def serving(session: Session, settings: Mapping[str, str]) -> Iterator[Server]:
    wanted = parse_assignments(tuple(f"{key}={value}" for key, value in {**settings, "decoupled_mode": "true"}.items()))
    lab, stack = session.catalog.stack(STACK)
    with ephemeral_stack(session, lab, stack, Options("cpu", set=wanted, runtime="local", ports="auto")) as handle:
        yield Server(handle.record.scrape_endpoints["grpc"], session.workspace.folder(stack).run_dir())


def run(session: Session, ours: int, vllm: int) -> dict[str, Any]:
    found = {"our": compared(session, ours, OURS, chosen, replay.replay, replay.change_settings)}
    installed = layer("vllm", session.workspace)
    if vllm and installed.ready:
        with vllms.VllmReplays(installed.require()) as replays:
            found["vLLM's"] = compared(session, vllm, VLLM, chosen_for_vllm, replays.replay, vllms.change_vllm_settings)
    rows = [
        (
            f"steps, {name} scheduler: {one['workloads']:,} workloads, {one['preempted']:,} preemptions",
            f"{one['as_predicted']:,} of {one['steps']:,} as predicted",
            "all",
            "yes" if one["as_predicted"] == one["steps"] else "NO",
        )
        for name, one in found.items()
        if one["workloads"]
    ]
    if vllm and not installed.ready:
        rows.append(("steps, vLLM's scheduler", f"not measured: {installed.remedy}", "all", "NO"))
    return {**found, "rows": rows}


def compared(
    session: Session,
    count: int,
    fixed: Mapping[str, str],
    choose: Callable[[random.Random, int], dict[str, str]],
    replayed: Callable[..., ReplayResult],
    changed: Callable[[SchedulerSettings, Mapping[str, str]], SchedulerSettings],
) -> dict[str, Any]:
    """``count`` workloads; the steps before server and prediction part count as predicted.

    Compared are batches, tokens, admissions, preemptions, cached tokens, the queue, KV blocks and ends.
    """
    found = {"workloads": count, "steps": 0, "as_predicted": 0, "preempted": 0}
    base: Recording | None = None
    began, number = time.monotonic(), 0
    while number < count:
        rng = random.Random(number)
        arrivals = workloads(rng, min(EACH, count - number))
        if base is None:  # what every server of this model has
            with serving(session, {**BASE, **fixed}) as server:
                base = server.pinned(arrivals[:9])
        settings = choose(rng, number // EACH)
        predicted = replayed(replace(base, arrivals=arrivals), changed(base.settings, settings)).rows
        with serving(session, {**BASE, **fixed, **settings}) as server:
            seen = server.pinned(arrivals).rows
        parting = figures.first_difference(predicted, seen)
        found["as_predicted"] += len(seen) if parting is None else parting[0] - 1
        found["steps"] += len(seen)
        found["preempted"] += sum(len(row.preempted) for row in seen)
        number += min(EACH, count - number)
        each = (time.monotonic() - began) / number
        said = f"step {parting[0]} differs: {parting[1]}" if parting else f"{len(seen):,} steps as predicted"
        print(f"{number} workloads, {each:.1f} s each: {said}; {settings}", flush=True)
    return found


def chosen(rng: random.Random, number: int) -> dict[str, str]:
    return {
        **_chosen(rng),
        "scheduling": ORDERS[number % len(ORDERS)],
        "batch_scheduler_policy": POLICIES[number // len(ORDERS) % len(POLICIES)],
    }


def chosen_for_vllm(rng: random.Random, number: int) -> dict[str, str]:
    reuse = str(number // 2 % 2 == 1).lower()
    return {**_chosen(rng), "scheduling": ("fcfs", "priority")[number % 2], "enable_kv_cache_reuse": reuse}


def _chosen(rng: random.Random) -> dict[str, str]:
    """A small cache and few slots, so that every decision is met; a prompt in one piece needs a large budget."""
    chunked = rng.random() < 0.7
    return {
        "max_num_sequences": str(rng.randint(3, 6)),
        "max_tokens_in_paged_kv_cache": str(32 * rng.randint(6, 8)),
        "enable_chunked_context": str(chunked).lower(),
        "max_num_tokens": str(rng.choice([16, 33, 64, 100]) if chunked else 256),
    }


def workloads(rng: random.Random, count: int, requests: int = 9) -> list[Arrival]:
    """The requests of ``count`` workloads, one after the other; some prompts of a workload begin alike."""
    found: list[Arrival] = []
    for number in range(count):
        beginning = rng.randbytes(HASH_BYTES * 80)
        for after in sorted(rng.randint(0, 12) for _ in range(requests)):
            shared = rng.choice([0, 0, 32, 45, 64])
            prompt = shared + rng.choice([1, 3, 10, 40]) if shared else rng.choice([1, 7, 30, 90, 120])
            limit = rng.choice([1, 5, 12, 40, 60])
            prefixes = beginning[: shared * HASH_BYTES] + rng.randbytes(HASH_BYTES * (prompt - shared))
            name, tenant, priority = str(len(found) + 1), rng.choice("ab"), rng.randint(1, 4)
            found.append(
                Arrival(
                    name,
                    0.0,
                    APART * number + after,
                    prompt,
                    limit,
                    limit,
                    "length",
                    tenant=tenant,
                    priority=priority,
                    prefixes=prefixes,
                )
            )
    return found
