"""vLLM's own scheduler with the recorder for it, in virtual time, over a device whose steps take known times.

It runs in a process that finds vLLM. Nothing of what predicts is used here: that is what it is compared with.
"""

from __future__ import annotations

import heapq
import itertools
import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VOCABULARY, BLOCK, EPOCH, ZERO = 32_000, 16, 1.79e9, 1000.0
INPUT_S = 1e-5  # from the end of a step, or from the request before, until the scheduler has a request
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": VOCABULARY,
}
DEFAULT = {
    "max_model_len": 40_000,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 2048,
    "enable_prefix_caching": True,
    "block_size": BLOCK,
    "num_gpu_blocks_override": 20_001,
}


@dataclass(frozen=True)
class Sent:
    """A request as its client sends it.

    Attributes:
        at: seconds.
        prompt: token ids.
        output: tokens of its answer.
        stops: the front end finds a stop string in it, and aborts it.
        patience: seconds after which its client leaves; None: it waits.
        front: seconds in vLLM's front end before the scheduler has it.
    """

    name: str
    at: float
    prompt: Sequence[int]
    output: int
    stops: bool = False
    patience: float | None = None
    front: float = 0.0
    priority: int = 0


@dataclass(frozen=True)
class Device:
    """What a step takes, in seconds: a roofline, and 2 % noise. By default as of a 7B model on an H100.

    It stands still for each of ``pauses``, its beginning and its length.
    """

    launch: float = 3e-3
    weights: float = 6.1e-3
    token: float = 2.6e-5
    context: float = 1.59e-7
    request: float = 1e-5
    noise: float = 0.02
    pauses: Sequence[tuple[float, float]] = ()

    def seconds(self, began: float, tokens: int, context: int, requests: int, chance: random.Random) -> float:
        usual = self.launch + max(self.weights, self.token * tokens) + self.context * context + self.request * requests
        over = began + usual * chance.lognormvariate(0.0, self.noise)
        for start, length in self.pauses:
            if start < over and start + length > began:
                over += start + length - max(start, began)
        return over - began


@dataclass
class Run:
    """What came of a load: when each request had its tokens, in seconds; and how many were preempted."""

    sent: Mapping[str, float]
    tokens: dict[str, list[float]] = field(default_factory=dict)
    preemptions: int = 0
    over: float = 0.0
    steps: int = 0

    def times(self, metric: str) -> dict[str, float]:
        """TTFT or TPOT (ms) of each request that has it."""
        if metric == "TTFT":
            return {name: 1e3 * (ends[0] - self.sent[name]) for name, ends in self.tokens.items()}
        every = {name: ends for name, ends in self.tokens.items() if len(ends) > 1}
        return {name: 1e3 * (ends[-1] - ends[0]) / (len(ends) - 1) for name, ends in every.items()}


class VirtualClock:
    """In the place of the module ``time`` in the recorder."""

    now = 0.0

    def monotonic(self) -> float:
        return ZERO + self.now

    def time(self) -> float:
        return EPOCH + ZERO + self.now


def serve(
    load: Sequence[Sent],
    arguments: Mapping[str, Any],
    device: Device,
    folder: Path | None = None,
    in_flight: int | None = None,
    rank: int = 0,
    seed: int = 1,
) -> Run:
    """Play a load to its end.

    Args:
        arguments: of `vllm.EngineArgs`, beside DEFAULT.
        folder: for a recording; None: none is made.
        in_flight: the next request comes when one of so many ends; None: at their times.
        rank: of data parallelism.
    """
    from labsched.vllm import recorder

    clock: Any = VirtualClock()
    module: Any = recorder
    true_clock, module.time = module.time, clock
    try:
        return _Server(arguments, device, folder, rank, clock, random.Random(seed)).play(load, in_flight)
    finally:
        module.time = true_clock


def config_of(arguments: Mapping[str, Any]) -> Any:
    """vLLM's `VllmConfig` for a model of one layer."""
    os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    from vllm import EngineArgs

    own = {**DEFAULT, **arguments}
    with tempfile.TemporaryDirectory() as folder:
        longest = {"max_position_embeddings": own["max_model_len"]}
        (Path(folder) / "config.json").write_text(json.dumps({**TINY, **longest}), encoding="utf-8")
        fixed = {"model": folder, "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True}
        config: Any = EngineArgs(**fixed, **own, kv_cache_memory_bytes=2**30).create_engine_config()
    config.cache_config.num_gpu_blocks = own["num_gpu_blocks_override"]
    return config


class _Server:
    def __init__(
        self,
        arguments: Mapping[str, Any],
        device: Device,
        folder: Path | None,
        rank: int,
        clock: VirtualClock,
        chance: random.Random,
    ) -> None:
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.core.sched.scheduler import Scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
        from vllm.v1.structured_output import StructuredOutputManager

        from labsched.vllm.recorder import recording_class

        config = config_of(arguments)
        config.parallel_config.data_parallel_rank = rank
        kind: Any = recording_class(Scheduler, str(folder)) if folder else Scheduler
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=64, dtype=config.model_config.dtype)
        self._scheduler = kind(
            vllm_config=config,
            kv_cache_config=KVCacheConfig(config.cache_config.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
        )
        self._hasher = None
        if config.cache_config.enable_prefix_caching:
            algorithm = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
            init_none_hash(algorithm)
            self._hasher = get_request_block_hasher(BLOCK, algorithm)
        self._device, self._clock, self._chance = device, clock, chance

    def play(self, load: Sequence[Sent], in_flight: int | None) -> Run:
        from vllm.v1.outputs import ModelRunnerOutput
        from vllm.v1.request import RequestStatus

        scheduler, clock = self._scheduler, self._clock
        coming = sorted(load, key=lambda one: (one.at + one.front, one.name))
        by_name = {one.name: one for one in load}
        run = Run({one.name: one.at for one in load})
        leaving: list[tuple[float, str]] = []
        place, live = 0, set[str]()
        sent: dict[str, float] = {}
        while place < len(coming) or scheduler.has_requests():
            while place < len(coming):
                one = coming[place]
                if len(live) >= in_flight if in_flight else one.at + one.front > clock.now:
                    break
                clock.now += INPUT_S
                sent[one.name] = clock.now if in_flight else one.at
                self._add(one, sent[one.name])
                live.add(one.name)
                if one.patience is not None:
                    heapq.heappush(leaving, (sent[one.name] + one.patience, one.name))
                place += 1
            while leaving and leaving[0][0] <= clock.now:
                _, name = heapq.heappop(leaving)
                if name in scheduler.requests:
                    scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
                    live.discard(name)
            if not scheduler.has_requests():
                if place < len(coming) and not in_flight:
                    clock.now = max(clock.now, coming[place].at + coming[place].front)
                continue
            output = scheduler.schedule()
            ids = [*output.num_scheduled_tokens]
            requests = [scheduler.requests[id] for id in ids]
            context = sum(request.num_computed_tokens for request in requests)
            tokens = output.total_num_scheduled_tokens
            clock.now += self._device.seconds(clock.now, tokens, context, len(ids), self._chance)
            sampled = [
                [] if request.is_prefill_chunk else [(request.num_output_tokens * 31 + len(request.request_id)) % 997]
                for request in requests
            ]
            run.preemptions += len(output.preempted_req_ids or ())
            run.steps += 1
            result = ModelRunnerOutput(ids, {id: number for number, id in enumerate(ids)}, sampled)
            live -= self._take(scheduler.update_from_output(output, result), by_name, run)
        run.over = clock.now
        run.sent = sent
        scheduler.shutdown()
        return run

    def _take(self, results: Mapping[int, Any], by_name: Mapping[str, Sent], run: Run) -> set[str]:
        """Note new tokens, and do what the front end does at a stop string. Return the requests that have ended."""
        from vllm.v1.request import RequestStatus

        ended, stopped = set[str](), list[str]()
        for change in itertools.chain.from_iterable(outputs.outputs for outputs in results.values()):
            times = run.tokens.setdefault(change.request_id, [])
            times += [self._clock.now] * len(change.new_token_ids)
            one = by_name[change.request_id]
            if change.finish_reason is not None:
                ended.add(one.name)
            elif one.stops and len(times) >= one.output:
                stopped.append(one.name)
        if stopped:
            self._scheduler.finish_requests(stopped, RequestStatus.FINISHED_ABORTED)
        return ended | {*stopped}

    def _add(self, one: Sent, at: float) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        limit = one.output + 400 if one.stops else one.output
        self._scheduler.add_request(
            Request(
                one.name,
                list(one.prompt),
                SamplingParams(max_tokens=limit, ignore_eos=True),
                None,
                arrival_time=EPOCH + ZERO + at,
                priority=one.priority,
                block_hasher=self._hasher,
            )
        )


def fresh_prompt(chance: random.Random, length: int) -> list[int]:
    """A prompt that shares nothing with another."""
    return chance.choices(range(VOCABULARY), k=length)


def plain(run: Run) -> SimpleNamespace:
    """The same without lists of each token, to be sent to another process."""
    return SimpleNamespace(ttft=run.times("TTFT"), tpot=run.times("TPOT"), preemptions=run.preemptions)
