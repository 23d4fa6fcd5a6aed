"""vLLM's own scheduler under generated traffic, over an engine that computes nothing: run in a process with vLLM."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from typing import Any

from labsched.log.lines import WORDS as KNOWN
from labsched.log.settings import SchedulerSettings
from labsched.replay import vllm_scheduler

VOCABULARY, CONTEXT = 1000, 512
WORDS = {
    "engine": "vllm",
    "gpt_model_type": "inflight_fused_batching",
    "max_num_sequences": "6",
    "max_num_tokens": "64",
    "max_tokens_in_paged_kv_cache": "640",
    "block_size": "32",
    "enable_kv_cache_reuse": "true",
}


def settings_of(words: dict[str, str]) -> SchedulerSettings:
    given = {**dict.fromkeys(KNOWN, ""), **WORDS, **words}
    size = int(given["block_size"])
    blocks = int(given["max_tokens_in_paged_kv_cache"]) // size
    return SchedulerSettings(given, blocks, size, int(given["max_num_tokens"]), CONTEXT, VOCABULARY)


class Server:
    """A scheduler of vLLM with requests that come, end and are aborted by chance, `ahead` steps in flight."""

    def __init__(self, words: dict[str, str], recorded: bool) -> None:
        settings = settings_of(words)
        config = vllm_scheduler.vllm_config(settings)
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        from labsched.vllm import RecordingScheduler

        self.ahead = 2 if settings.words["async_scheduling"] == "true" else 1
        kind: Any = RecordingScheduler if recorded else AsyncScheduler if self.ahead > 1 else Scheduler
        self.scheduler = vllm_scheduler.of_kind(kind, config)
        self._hasher = vllm_scheduler.hasher(config)
        self.flying: deque[tuple[Any, Any]] = deque()
        self._count = 0

    def add(self, prompt: int, limit: int, shared: int, priority: int, stop: bool) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self._count += 1
        ids = [n % VOCABULARY for n in range(shared)] + [(self._count * 31 + n) % VOCABULARY for n in range(prompt)]
        params = SamplingParams(max_tokens=limit, ignore_eos=True, stop_token_ids=[7] if stop else None)
        named = {"arrival_time": float(self._count), "priority": priority, "block_hasher": self._hasher}
        self.scheduler.add_request(Request(f"request-{self._count}", ids, params, None, **named))

    def abort(self, chance: random.Random) -> None:
        from vllm.v1.request import RequestStatus

        if live := sorted(self.scheduler.requests):
            self.scheduler.finish_requests([chance.choice(live)], RequestStatus.FINISHED_ABORTED)

    def step(self) -> list[Any]:
        """What vLLM decided and gave out, without times."""
        from vllm.v1.outputs import ModelRunnerOutput

        found: list[Any] = []
        if self.scheduler.has_requests():
            output = self.scheduler.schedule()
            found.append(plain(output))
            ids = [*output.num_scheduled_tokens]
            whole = [not self.scheduler.requests[id].is_prefill_chunk for id in ids]
            tokens = [(len(id) + self._count * 17 + n) % 11 for n, id in enumerate(ids)]
            sampled = [[token] if done else [] for token, done in zip(tokens, whole, strict=True)]
            self.flying.append((output, ModelRunnerOutput(ids, {id: n for n, id in enumerate(ids)}, sampled)))
            if len(self.flying) < self.ahead:
                return found
        if self.flying:
            results = self.scheduler.update_from_output(*self.flying.popleft())
            outputs = [one for each in results.values() for one in each.outputs]
            found += [(one.request_id, one.new_token_ids, str(one.finish_reason)) for one in outputs]
        return found

    @property
    def idle(self) -> bool:
        return not self.flying and not self.scheduler.has_requests()


def plain(output: Any) -> dict[str, Any]:
    """All fields of a `SchedulerOutput`, which can be compared and sent to another process."""
    return {field.name: repr(getattr(output, field.name)) for field in dataclasses.fields(output)}


def play(words: dict[str, str], seed: int, recorded: bool, requests: int = 60) -> tuple[list[Any], int, int]:
    """The steps of one workload, and how many requests were preempted and aborted in it."""
    chance, server, steps, aborted = random.Random(seed), Server(words, recorded), [], 0
    sent = 0
    while sent < requests or not server.idle:
        if sent < requests and chance.random() < 0.5:
            sent += 1
            prompt, limit, shared = chance.randint(1, 150), chance.randint(1, 40), chance.choice((0, 0, 96))
            server.add(prompt, limit, shared, chance.randint(0, 2), chance.random() < 0.5)
        if chance.random() < 0.04:
            aborted += 1
            server.abort(chance)
        steps.append(server.step())
    decided = [one for step in steps for one in step if isinstance(one, dict)]
    preempted = sum("request" in one["preempted_req_ids"] for one in decided)
    server.scheduler.shutdown()
    return steps, preempted, aborted


def play_recorded(words: dict[str, str], seed: int, folder: str, limit_mib: str = "") -> tuple[list[Any], int, int]:
    """The same by the recording scheduler, whose files are whole when this returns."""
    import os

    os.environ["LABS_RECORD"] = folder
    if limit_mib:
        os.environ["LABS_RECORD_MIB"] = limit_mib
    try:
        return play(words, seed, True)
    finally:
        del os.environ["LABS_RECORD"]
        os.environ.pop("LABS_RECORD_MIB", None)


def pinned(words: dict[str, str], seed: int, folder: str, requests: int = 40) -> None:
    """A recording by vLLM's scheduler of requests that come before given steps: as the labs' replay drives it."""
    from labsched.replay.player import Replay
    from labsched.replay.recording import Arrival

    chance = random.Random(seed)
    arrivals, after = [], 0
    for number in range(requests):
        limit = chance.randint(1, 40)
        made = limit if chance.random() < 0.5 else chance.randint(1, limit)
        arrivals.append(
            Arrival(
                str(number), 0.0, after, chance.randint(1, 150), limit, made, "length", priority=chance.randint(0, 2)
            )
        )
        after += chance.choice((0, 0, 1, 3))
    player: Any = vllm_scheduler.CountedVllm(settings_of(words), folder)
    Replay(player, arrivals).run()
    player.scheduler.shutdown()


def guided(text: str) -> tuple[list[list[str]], list[list[str]]]:
    """Seven requests under a scheduler.py of the labs' kind: who joins, and who is preempted, in order."""
    import tempfile
    from pathlib import Path

    from benchmarks.counting_vllm import make_counted_vllm
    from labsched.replay.player import Replay
    from labsched.replay.recording import Arrival
    from labserve.vllm.guide import guide_beside

    words = {**WORDS, "max_num_sequences": "3", "max_tokens_in_paged_kv_cache": "256", "enable_kv_cache_reuse": "false"}
    scheduler: Any = make_counted_vllm(lambda name: words.get(name, ""), CONTEXT, VOCABULARY)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "scheduler.py").write_text(text)
        scheduler._guide = guide_beside(Path(folder), scheduler._settings)
        rows = Replay(scheduler, [Arrival(str(n), 0.0, 0, 30, 90, 90, "length") for n in range(7)]).run()
    return [[*row.joined] for row in rows if row.joined], [[*row.evicted] for row in rows if row.evicted]
