"""A recording of our in-flight scheduler, made by a replay, and its step log as the server writes it."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from labsched import replay
from labsched.recording import Arrival, Recording, SchedulerSettings, StepRow

WORDS = {
    "engine": "openvino",
    "gpt_model_type": "inflight_fused_batching",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "max_num_sequences": "4",
    "max_tokens_in_paged_kv_cache": "",
    "max_num_tokens": "",
    "enable_chunked_context": "true",
    "enable_kv_cache_reuse": "false",
    "speculation": "none",
    "scheduling": "fcfs",
}
SETTINGS = SchedulerSettings(WORDS, 40, 32, 64, 512, 1000)


def some_requests(count: int = 30, seed: int = 1) -> list[Arrival]:
    rng = random.Random(seed)
    found, now = [], 0.0
    for number in range(count):
        limit = rng.randint(2, 30)
        one = Arrival(str(number), now, number, rng.randint(1, 120), limit, limit, "length")
        found.append(replace(one, tenant=rng.choice("ab"), priority=rng.randint(1, 4)))
        now += rng.expovariate(200)
    return found


def cost(row: StepRow) -> float:
    """A step's time that the model can say exactly: 2 ms, 0.5 ms a decoding request, 0.1 ms a prompt token."""
    return 2e-3 + 5e-4 * row.phase.count("d") + 1e-4 * sum(row.tokens[i] for i, p in enumerate(row.phase) if p == "p")


def made_up_recording() -> Recording:
    arrivals = some_requests()
    done = replay.replay(Recording(SETTINGS, arrivals), SETTINGS, cost)
    return Recording(SETTINGS, arrivals, done.rows, "steps-made-up.jsonl")


def written(folder: Path, found: Recording) -> Path:
    """The recording as the server writes it."""
    head = {"v": 2, "model": "tensorrt_llm", "instance": "0"}
    s = found.settings
    lines: list[dict[str, Any]] = [{**head, "t": 0.0, "kind": "scheduler", **asdict(s)}]
    by_name = {a.name: (n, a) for n, a in enumerate(found.arrivals, 1)}
    for number, row in enumerate(found.rows, 1):
        over = {**head, "t": 100 + row.over}
        for name in sorted(row.ended):
            n, a = by_name[name]
            own = {of: getattr(a, of) for of in ("after", "prompt", "limit", "made", "why", "tenant", "priority")}
            more = {"waited": 0.0, "left": number, "word": False, "resumable": True, "prefixes": ""}
            lines.append({**over, "kind": "request", "name": name, "came": n, "arrived": 100 + a.at, **own, **more})
        own = {of: getattr(row, of) for of in ("phase", "tokens", "made", "joined", "waiting")}
        own |= {"ids": row.batch, "batch": len(row.batch), "evicted": row.preempted, "kv_blocks_used": row.blocks}
        own |= {"queue": len(row.waiting), "ended": dict.fromkeys(row.ended, "length")}
        own |= {"why": row.why} if row.why else {}
        lines.append({**over, "n": number, "dur": row.over - row.began, "kind": "step", **own})
    path = folder / "steps-chat.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
