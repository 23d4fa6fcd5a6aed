"""vLLM's scheduler over an engine that computes nothing, for `labctl predict`: no weights, no model, no server."""

import json
import os
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labsched.policy import BATCHING
from labsched.request import Request
from labsched.vllm.recorder import ARGUMENTS, recording_class
from labserve.model_shape import ModelShape
from labserve.vllm.engine import VllmScheduler
from labserve.vllm.settings import VllmSettings, Word
from labserve.vllm.setup import ENVIRONMENT, IN_FLIGHT
from labserve.vllm.watched import Gate, watched_scheduler

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


class CountedVllm(VllmScheduler):
    """The scheduler of `engine=vllm` as a replay drives the labs' own (:class:`labsched.replay.Replay`)."""

    memory = SimpleNamespace(leaving=())  # a dropped request's memory is free at once

    def __init__(self, engine: Any, settings: VllmSettings, static: bool) -> None:
        super().__init__(engine, settings, static)
        self.features = settings.features

    def submit(self, request: Request) -> None:
        """`request.sampling` holds the answer that the model will give. Raises as the server's does."""
        self.engine.answers[str(request.number)], request.sampling = request.sampling, None
        super().submit(request)


class _CountingLLM:
    """In the place of `vllm.LLMEngine`: its step does what `EngineCore.step` does, and computes nothing.

    A request has its next token as soon as the scheduler has shared out all tokens before it. With `ahead` steps it
    does what `EngineCore.step_with_batch_queue` does with as many in its queue.
    """

    def __init__(self, config: Any, scheduler: Any, hasher: Any, ahead: int = 1) -> None:
        self.vllm_config = config
        self._scheduler, self._hasher, self._ahead = scheduler, hasher, ahead
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        self._in_flight: deque[tuple[Any, Any]] = deque()  # a decision, and its result
        self.answers: dict[str, Any] = {}  # by the request's id
        self._came = 0

    def add_request(self, id: str, prompt: dict[str, list[int]], params: Any, priority: int) -> str:
        from vllm.v1.request import Request as TheirRequest

        answer = self.answers[id]
        if not answer.word:  # a stop word is found by the caller, as on the server
            ends_early = len(answer.tokens) < params.max_tokens
            if self._ahead > 1 and ends_early and answer.tokens.count(answer.tokens[-1]) == 1:
                params.stop_token_ids = answer.tokens[-1:]  # the last token is known only when it is made
            else:
                params.max_tokens = len(answer.tokens)
        self._came += 1
        request = TheirRequest(
            id,
            prompt["prompt_token_ids"],
            params,
            None,
            arrival_time=float(self._came),
            priority=priority,
            block_hasher=self._hasher,
        )
        self._scheduler.add_request(request)
        return id

    def abort_request(self, ids: Sequence[str], internal: bool = True) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler.finish_requests(ids, RequestStatus.FINISHED_ABORTED)

    def step(self) -> list[Any]:
        """The changes as vLLM's `RequestOutput`s: one new token for each request that has one."""
        if self._scheduler.has_requests():
            output = self._scheduler.schedule()
            self._in_flight.append((output, self._computed(output)))
            more = output.num_scheduled_tokens or self._scheduler.has_requests()
            if more and len(self._in_flight) < self._ahead:
                return []
        if not self._in_flight:
            return []
        by_client = self._scheduler.update_from_output(*self._in_flight.popleft())
        return [
            SimpleNamespace(
                request_id=change.request_id,
                outputs=[SimpleNamespace(token_ids=change.new_token_ids, finish_reason=change.finish_reason)],
                finished=change.finish_reason is not None,
            )
            for outputs in by_client.values()
            for change in outputs.outputs
        ]

    def _computed(self, output: Any) -> Any:
        """The new token of each request that has one by this step."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        sampled = []
        for request in (self._scheduler.requests[id] for id in ids):
            # This step's tokens are counted already, and so is its new one, where others are in flight.
            place = request.num_output_tokens + max(0, request.num_output_placeholders - 1)
            answer = self.answers[request.request_id].tokens
            sampled.append([] if request.is_prefill_chunk else [answer[min(place, len(answer) - 1)]])
        return ModelRunnerOutput(ids, {id: place for place, id in enumerate(ids)}, sampled)


def make_counted_vllm(word: Word, context: int, vocabulary: int, record: str = "") -> CountedVllm:
    """vLLM's own scheduler with the settings in `word`, for a model of these sizes.

    Args:
        record: a folder for a recording of it (`labsched.vllm`); "": none.

    Raises:
        ValueError: vLLM cannot do what is asked of it.
    """
    settings = VllmSettings.of(word, ModelShape(vocabulary, context, 1, head_dim=HEAD))
    config = vllm_configuration(settings, word, vocabulary)
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    static = BATCHING[word("gpt_model_type") or "inflight_batching"]
    ahead = word("async_scheduling") == "true"
    kind = AsyncScheduler if ahead else Scheduler
    if record:
        kind = recording_class(kind, record)
    gate = Gate(settings.max_running) if static else None
    scheduler = of_kind(watched_scheduler(kind, gate), config, settings)
    engine = _CountingLLM(config, scheduler, hasher(config, settings), IN_FLIGHT if ahead else 1)
    return CountedVllm(engine, settings, static)


def vllm_configuration(settings: VllmSettings, word: Word, vocabulary: int) -> Any:
    """vLLM's `VllmConfig` for a model of one layer, which is in no file but its configuration. Raises ValueError."""
    os.environ.update(ENVIRONMENT)
    from vllm import EngineArgs

    with tempfile.TemporaryDirectory() as folder:
        longest = settings.arguments["max_model_len"]
        sizes = {"vocab_size": vocabulary, "max_position_embeddings": longest}
        (Path(folder) / "config.json").write_text(json.dumps({**TINY, **sizes}), encoding="utf-8")
        own = {name: json.loads(word(name)) for name in ARGUMENTS if word(name)}
        arguments = {**settings.arguments, **own, "model": folder, "skip_tokenizer_init": True}
        config: Any = EngineArgs(**arguments).create_engine_config()
    config.cache_config.num_gpu_blocks = settings.kv.blocks + 1  # with the null block
    config.scheduler_config.async_scheduling = word("async_scheduling") == "true"  # vLLM for CPUs takes it back
    return config


def of_kind(kind: Any, config: Any, settings: VllmSettings) -> Any:
    """A scheduler of this class of vLLM's, over one layer of full attention."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    blocks, size = settings.kv.blocks + 1, settings.kv.block_size
    spec = FullAttentionSpec(block_size=size, num_kv_heads=1, head_size=HEAD, dtype=config.model_config.dtype)
    return kind(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=size,
        hash_block_size=size,
    )


def hasher(config: Any, settings: VllmSettings) -> Any:
    """The function that hashes a request's blocks; None without prefix caching."""
    if not settings.features.kv_cache_reuse:
        return None
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    algorithm = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
    init_none_hash(algorithm)
    return get_request_block_hasher(settings.kv.block_size, algorithm)
