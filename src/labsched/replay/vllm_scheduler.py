"""vLLM's own scheduler over an engine that computes nothing, in a process that finds vLLM: no weights, no server.

A replay drives it as it drives the labs' own scheduler. Its step does what `EngineCore.step` (vllm/v1/engine/core.py)
does, or with asynchronous scheduling what `EngineCore.step_with_batch_queue` does with two steps in its queue. A
request has its next token as soon as the scheduler has shared out all tokens before it.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labsched.errors import BadInput, LabError
from labsched.kv_budget import NULL_BLOCKS
from labsched.log.settings import SchedulerSettings
from labsched.plan import Because
from labsched.policy import BATCHING, gather_s
from labsched.replay.player import WHERE, Replay, ReplayResult, StepSeconds, changed_words
from labsched.replay.recording import Recording
from labsched.replay.vllm_arguments import CACHE, own_arguments
from labsched.request import End, Request
from labsched.step import MOST_NAMED, Step
from labsched.vllm.decision import Decision, decision, queue
from labsched.vllm.gate import Gate
from labsched.vllm.recorder import recording_class

POLICIES = ("fcfs", "priority")  # vllm/config/scheduler.py: SchedulerPolicy
HEAD = 64  # numbers of an attention head: any that vLLM takes, for none is computed
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HEAD,
    "intermediate_size": HEAD,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
}
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def change_vllm_settings(settings: SchedulerSettings, assignments: Mapping[str, str]) -> SchedulerSettings:
    """As :func:`labsched.replay.player.change_settings`.

    Raises LabError also where vLLM would refuse the settings, or does more.
    """
    if settings.beyond:
        raise LabError(
            "this server cannot be replayed",
            f"it has {' and '.join(settings.beyond)}, and the replay has not",
            "labctl explain needs no replay",
            code="replay-refused",
        )
    words = changed_words(settings, assignments)
    try:
        for name, word in assignments.items():
            if _is_number(settings.words.get(name, "")) and not _is_number(word):
                raise ValueError(f"{name}: '{word}' is not a number of at least 0")
        slots, tokens = int(words["max_num_sequences"] or 16), int(words["max_num_tokens"] or settings.step_tokens)
        blocks = settings.blocks
        if words[CACHE] != settings.words[CACHE]:
            blocks = int(words[CACHE]) // settings.block_size
        if slots < 1 or blocks < 1:
            raise ValueError("no request would fit")
        if tokens < slots:
            raise ValueError(f"max_num_tokens: {tokens} are not a token for each of max_num_sequences={slots}")
        if (words["scheduling"] or POLICIES[0]) not in POLICIES:
            raise ValueError(f"scheduling: vLLM has no '{words['scheduling']}'; it has: {', '.join(POLICIES)}")
        longest = min(settings.context, blocks * settings.block_size)
        if words["enable_chunked_context"].lower() == "false" and tokens < longest:
            raise ValueError(f"max_num_tokens: {tokens} are too few for a prompt of {longest} in one piece")
    except ValueError as error:
        raise LabError(
            "these settings cannot be predicted", str(error), WHERE, code="settings-unpredictable"
        ) from error
    return replace(settings, words=words, blocks=blocks, step_tokens=tokens)


def _is_number(word: str) -> bool:
    try:
        return 0 <= float(word) < math.inf
    except ValueError:
        return False


def replay_vllm(
    recording: Recording,
    settings: SchedulerSettings,
    seconds: StepSeconds | None = None,
    in_flight: int | None = None,
    seen: Callable[[Step], None] | None = None,
) -> ReplayResult:
    """As :func:`labsched.replay.player.replay`, by vLLM's scheduler."""
    scheduler: Any = CountedVllm(settings)
    gather = gather_s(lambda name: settings.words.get(name, ""))
    done = Replay(scheduler, recording.arrivals, seconds, in_flight, seen, gather)
    return ReplayResult(done.run(), done.arrived)


class CountedVllm:
    """vLLM's scheduler with these settings, as a replay drives the labs' own (:class:`labsched.replay.player.Replay`).

    A request's `sampling` holds the answer that the model will give.

    Args:
        record: a folder for a recording of it (`labsched.vllm`); "": none.

    Raises LabError: vLLM refuses the settings, or is another one than is known here.
    """

    memory = SimpleNamespace(leaving=())  # a dropped request's memory is free at once

    def __init__(self, settings: SchedulerSettings, record: str = "") -> None:
        self._ahead = 2 if settings.words.get("async_scheduling") == "true" else 1
        try:
            config = _config_again(settings)
            from vllm.v1.core.sched.async_scheduler import AsyncScheduler
            from vllm.v1.core.sched.scheduler import Scheduler

            kind: Any = AsyncScheduler if self._ahead > 1 else Scheduler
            self.scheduler = of_kind(recording_class(kind, record) if record else kind, config)
            self._hasher = hasher(config)
        except ValueError as error:
            raise LabError("vLLM refuses these settings", str(error), WHERE, code="settings-unpredictable") from error
        except (ImportError, AttributeError, TypeError) as error:
            raise LabError(
                "the vLLM that is installed here cannot replay a recording",
                f"{type(error).__name__}: {error}",
                "labctl engines install vllm installs one that can",
                code="replay-needs-vllm",
            ) from error
        self.features = SimpleNamespace(kv_cache_reuse=settings.reuse)
        self.static = BATCHING[settings.words["gpt_model_type"]]
        self.max_running = config.scheduler_config.max_num_seqs
        self._gate = Gate(self.max_running) if self.static else None
        self._longest = min(settings.context, settings.blocks * settings.block_size)
        self._requests: dict[str, Request] = {}  # by their names, which vLLM knows them by
        self._prompts: dict[str, int] = {}  # tokens of each prompt
        self._in_flight: deque[tuple[Any, Any, Decision]] = deque()  # what vLLM decided, its result, and our account
        self._came = 0

    @property
    def running(self) -> Any:
        return self.scheduler.running

    @property
    def waiting(self) -> list[Any]:
        return [*queue(self.scheduler)]

    @property
    def idle(self) -> bool:
        return not self._requests and not self._in_flight

    def submit(self, request: Request) -> None:
        """Hand a request over to vLLM. Raises BadInput for one that could never run."""
        from vllm import SamplingParams
        from vllm.v1.request import Request as VllmRequest

        whole = len(request.prompt) + max(request.limit, 1)
        if whole > self._longest:
            raise BadInput(
                "request_output_len", f"{whole:,} tokens are more than a sequence may have ({self._longest:,})"
            )
        answer: Any = request.sampling
        limit, ends = request.limit, None
        if not answer.word:  # a stop word is found by the caller, as on the server
            if self._ahead > 1 and len(answer.tokens) < limit and answer.tokens.count(answer.tokens[-1]) == 1:
                ends = answer.tokens[-1:]  # the last token is known only when it is made
            else:
                limit = len(answer.tokens)
        self._came += 1
        self._requests[request.name], self._prompts[request.name] = request, len(request.prompt)
        request.came = self._came
        self.scheduler.add_request(
            VllmRequest(
                request.name,
                request.prompt,
                SamplingParams(max_tokens=limit, ignore_eos=True, stop_token_ids=ends, detokenize=False),
                None,
                arrival_time=float(self._came),
                priority=request.priority,
                block_hasher=self._hasher,
            )
        )

    def cancel(self, request: Request) -> None:
        """Take a request out of vLLM, at once."""
        self._abort(request)
        request.end = End.CANCELLED

    def _abort(self, request: Request) -> None:
        from vllm.v1.request import RequestStatus

        if self._requests.pop(request.name, None):
            del self._prompts[request.name]
            if request.name in self.scheduler.requests:
                self.scheduler.finish_requests([request.name], RequestStatus.FINISHED_ABORTED)

    def step(self) -> Step:
        """The next step that ends.

        vLLM decides a step and waits for one. With asynchronous scheduling that is the one before, and where none was
        in flight it decides two. Where every request in flight has ended it waits first.
        """
        while not (self._in_flight and not self._needed) and self.scheduler.has_requests():
            output = self._scheduled()
            more = output.num_scheduled_tokens or self.scheduler.has_requests()
            if not more or len(self._in_flight) >= self._ahead:
                break
        output, result, decided = self._in_flight.popleft()
        made: dict[str, Any] = {}
        for outputs in self.scheduler.update_from_output(output, result).values():
            made |= {change.request_id: change for change in outputs.outputs}
        return self._step_of(decided, made)

    @property
    def _needed(self) -> bool:
        """Whether a request in flight has not ended."""
        return any(id in self._requests for _, _, decided in self._in_flight for id in decided.tokens)

    def _scheduled(self) -> Any:
        scheduler = self.scheduler
        output = self._gate.through(scheduler, scheduler.schedule) if self._gate else scheduler.schedule()
        decided = decision(scheduler, output, time.monotonic(), MOST_NAMED)
        if self._gate and decided.waiting and (because := self._gate.because(scheduler, decided.waiting[0])):
            decided.because = because
        self._in_flight.append((output, self._computed(output), decided))
        return output

    def _computed(self, output: Any) -> Any:
        """The new token of each request that has one by this step."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = [*output.num_scheduled_tokens]
        sampled: list[list[int]] = []
        for id in ids:
            request, ours = self.scheduler.requests[id], self._requests.get(id)
            if request.is_prefill_chunk:
                sampled.append([])
                continue
            answer: Any = ours.sampling.tokens if ours else [0]  # type: ignore[union-attr]
            # This step's tokens are counted already, and so is its new one, where others are in flight.
            place = request.num_output_tokens + max(0, request.num_output_placeholders - 1)
            sampled.append([answer[min(place, len(answer) - 1)]])
        return ModelRunnerOutput(ids, {id: place for place, id in enumerate(ids)}, sampled)

    def _step_of(self, decided: Decision, made: Mapping[str, Any]) -> Step:
        """vLLM's decision as the step log has it, without requests that had ended when it was computed."""
        letters = dict(zip(decided.tokens, decided.phase(self._prompts), strict=True))
        here = [id for id in decided.tokens if id in self._requests]
        waiting = [id for id in decided.waiting if id in self._requests]
        because = decided.because if waiting else Because()
        step = Step(
            here,
            phase="".join(letters[id] for id in here),
            tokens=[decided.tokens[id] for id in here],
            cached=[decided.admitted.get(id, 0) for id in here] if self.features.kv_cache_reuse else (),
            joined=[id for id in here if id in decided.admitted],
            evicted=[id for id in decided.preempted if id in self._requests],
            waiting=waiting,
            queue=decided.queue,
            why=because.why,
            because=because.numbers or None,
            kv_blocks_used=decided.blocks_used,
            requests=[self._requests[id] for id in here],
        )
        for request, letter in zip(step.requests, step.phase, strict=True):
            change = made.get(request.name)
            stopped, tokens = request.take([*change.new_token_ids]) if change else (False, [])
            if change and (stopped or change.finish_reason is not None):
                request.end = End.DONE
                self._abort(request)
            step.add(request, len(tokens), letter)
        return step


_last_config: list[tuple[SchedulerSettings, Any]] = []  # at most one


def _config_again(settings: SchedulerSettings) -> Any:
    """As :func:`vllm_config`, which takes as long as many steps: that of the last settings is made once."""
    if not _last_config or _last_config[0][0] != settings:
        _last_config[:] = [(settings, vllm_config(settings))]
    return _last_config[0][1]


def vllm_config(settings: SchedulerSettings) -> Any:
    """vLLM's `VllmConfig` for a model of one layer, which is in no file but its configuration. Raises ValueError."""
    os.environ |= QUIET
    from vllm import EngineArgs

    words = settings.words
    sizes = {"vocab_size": settings.vocabulary, "max_position_embeddings": settings.context}
    asynchronous = words.get("async_scheduling") == "true"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**TINY, **sizes}), encoding="utf-8")
        config: Any = EngineArgs(
            model=folder,
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            max_model_len=min(settings.context, settings.blocks * settings.block_size),
            max_num_seqs=int(words["max_num_sequences"] or 16),
            max_num_batched_tokens=settings.step_tokens,
            enable_chunked_prefill=words["enable_chunked_context"] != "false",
            enable_prefix_caching=settings.reuse,
            scheduling_policy=words["scheduling"] or POLICIES[0],
            block_size=settings.block_size,
            num_gpu_blocks_override=settings.blocks + NULL_BLOCKS,
            kv_cache_memory_bytes=2**30,  # nothing is computed: what it takes is the number of blocks
            async_scheduling=asynchronous,
        ).create_engine_config()
    config.cache_config.num_gpu_blocks = settings.blocks + NULL_BLOCKS
    config.scheduler_config.async_scheduling = asynchronous  # vLLM for CPUs takes it back
    for name, value in own_arguments(settings).items():
        owners = [part for part in (config.scheduler_config, config.cache_config) if hasattr(part, name)]
        if not owners:
            raise ValueError(f"{name}: the vLLM that is installed here has no such setting")
        setattr(owners[0], name, value)
    return config


def of_kind(kind: Any, config: Any) -> Any:
    """A scheduler of this class of vLLM's, over one layer of full attention."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    size = config.cache_config.block_size
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=HEAD, dtype=config.model_config.dtype)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(config.cache_config.num_gpu_blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        hash_block_size=size,
    )


def hasher(config: Any) -> Any:
    """The function that hashes a request's blocks; None without prefix caching."""
    if not config.cache_config.enable_prefix_caching:
        return None
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    algorithm = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(algorithm)
    return get_request_block_hasher(config.cache_config.block_size, algorithm)
