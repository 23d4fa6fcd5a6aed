"""A recording of our in-flight scheduler, made by a replay, and its step log as the server writes it."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from labsched.log.settings import HASH_BYTES, SchedulerSettings
from labsched.replay import player
from labsched.replay.recording import Arrival, Recording
from labsched.step import Step
from labsched.vllm.files import BLOCK_HASH_BYTES

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


def cost(row: Step) -> float:
    """A step's time that the model can say exactly: 2 ms, 0.5 ms a decoding request, 0.1 ms a prompt token."""
    return 2e-3 + 5e-4 * row.phase.count("d") + 1e-4 * sum(row.tokens[i] for i, p in enumerate(row.phase) if p == "p")


def made_up_recording() -> Recording:
    arrivals = some_requests()
    done = player.replay(Recording(SETTINGS, arrivals), SETTINGS, cost)
    return Recording(SETTINGS, arrivals, done.steps, "steps-made-up.jsonl")


def request(name: str, at: float, prompt: int, limit: int, tenant: str | None = None, priority: int = 2) -> Arrival:
    return Arrival(name, at, 0, prompt, limit, limit, "length", tenant=tenant, priority=priority)


def recorded(
    arrivals: Sequence[Arrival], set_to: SchedulerSettings = SETTINGS, cost: Callable[[Step], float] = cost
) -> Recording:
    """What a server would record of these requests; each waiting request has the scheduler's reason.

    ``at`` is when the scheduler has a request: one that waited in a front end came to the server before that.
    """
    ours = replace(set_to, words={**set_to.words, "engine": "openvino"})
    sent = [replace(arrival, at=arrival.received) for arrival in arrivals]
    rows = player.Replay(player.scheduler_of(ours), sent, cost).run()
    return Recording(set_to, list(arrivals), rows, "steps-made-up.jsonl")


def vllm_settings(slots: int = 64, blocks: int = 4000, step_tokens: int = 2048, **recorded: Any) -> SchedulerSettings:
    """The settings of a vLLM of one's own with a block of 16 tokens."""
    words = {**WORDS, "engine": "vllm", "max_num_sequences": str(slots), "batch_scheduler_policy": "max_utilization"}
    words |= {"max_num_tokens": str(step_tokens), "max_tokens_in_paged_kv_cache": str(16 * blocks)}
    return SchedulerSettings(
        words, blocks, 16, step_tokens, 64_000, 1000, recorded={"version": "0.32.0", "max_num_seqs": slots, **recorded}
    )


def block_hashes(arrival: Arrival, size: int) -> str:
    """A hash of the sequence up to the end of each full block, as the recorder writes them."""
    width = size * HASH_BYTES
    ends = range(width, len(arrival.prefixes) + 1, width)
    return base64.b64encode(b"".join(arrival.prefixes[at - BLOCK_HASH_BYTES : at] for at in ends)).decode()


def written_by_vllm(
    folder: Path, found: Recording, rank: int = 0, started: str = "20261128-140000000", wall: float = 1_790_000_000.0
) -> Path:
    """The recording as the recorder for vLLM writes it; its clock is at 100 s at second 0, and ``wall`` later that day.

    Requests have numbers for names, and their names for vLLM's ids.
    """
    server = {"v": 2, "model": "vllm", "instance": str(rank)}
    s = found.settings
    fields = {name: value for name, value in asdict(s).items() if name not in ("recorded", "beyond")}
    fields |= {"vllm": dict(s.recorded), "beyond": [], "hash_block_size": s.block_size, "wall": wall}
    lines: list[dict[str, Any]] = [{"kind": "scheduler", "t": 100.0, **server, **fields}]
    every = sorted([*found.arrivals, *found.pending], key=lambda arrival: arrival.received)
    number = {arrival.name: str(place) for place, arrival in enumerate(every, 1)}
    coming, live = list(every), dict[str, dict[str, Any]]()

    def come(until: float) -> None:
        while coming and coming[0].received <= until:
            arrival = coming.pop(0)
            at = round(100 + arrival.received, 6)
            line = {
                "kind": "arrival",
                "t": at,
                **server,
                "name": number[arrival.name],
                "id": arrival.id or arrival.name,
            }
            line |= {"came": int(number[arrival.name]), "arrived": at, "after": 0, "prompt": arrival.prompt}
            line |= {"limit": arrival.limit, "priority": arrival.priority}
            if arrival.waited is not None:
                line["waited"] = arrival.waited
            lines.append(line)
            live[arrival.name] = line

    def end(arrival: Arrival, t: float) -> None:
        more = {"made": arrival.made, "why": arrival.why, "left": 0, "word": False, "tenant": arrival.tenant}
        more |= {"resumable": True, "prefixes": "", "hashes": block_hashes(arrival, s.block_size)}
        lines.append({**live.pop(arrival.name), **more, "kind": "request", "t": round(100 + t, 6)})

    by_name = {arrival.name: arrival for arrival in every}
    gone: dict[str, str] = {}
    for step, row in enumerate(found.steps, 1):
        come(row.over)
        for name in [*live]:
            arrival = by_name[name]
            if arrival.cancelled and arrival.left_at <= row.over:
                end(arrival, arrival.left_at)
                gone[number[name]] = arrival.why
            elif name in row.ended:
                end(arrival, row.over)
                gone[number[name]] = arrival.why
        line = {
            "n": step,
            "t": round(100 + row.over, 6),
            "dur": round(row.over - row.began, 6),
            **server,
            "kind": "step",
        }
        line |= row.renamed(lambda names: [number[name] for name in names]).logged() | {"batch": row.batch}
        line.pop("ended", None)
        line |= {"ended": gone} if gone else {}
        lines.append(line)
        gone = {}
    for arrival in every:  # they ended after the last step
        if arrival.name in live and arrival.cancelled:
            end(arrival, arrival.left_at)
    path = folder / f"vllm-{started}-{4000 + rank}-{rank}.000001.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def written(folder: Path, found: Recording) -> Path:
    """The recording as the server writes it."""
    head = {"v": 2, "model": "tensorrt_llm", "instance": "0"}
    s = found.settings
    lines: list[dict[str, Any]] = [{**head, "t": 0.0, "kind": "scheduler", **asdict(s)}]
    by_name = {a.name: (n, a) for n, a in enumerate(found.arrivals, 1)}
    for number, row in enumerate(found.steps, 1):
        over = {**head, "t": 100 + row.over}
        for name in sorted(row.ended):
            n, a = by_name[name]
            own = {of: getattr(a, of) for of in ("after", "prompt", "limit", "made", "why", "tenant", "priority")}
            more: dict[str, Any] = {"waited": 0.0, "left": number, "word": False, "resumable": True}
            more["prefixes"] = base64.b64encode(a.prefixes).decode()
            lines.append({**over, "kind": "request", "name": name, "came": n, "arrived": 100 + a.at, **own, **more})
        lines.append({**over, "n": number, "kind": "step", "batch": row.batch, **row.to_json(), "t": over["t"]})
    path = folder / "steps-chat.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
