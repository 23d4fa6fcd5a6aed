"""The scheduler of `engine=vllm` over an engine that computes nothing, to be measured and tested."""

from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks import outside_triton  # noqa: F401
from labsched.log.lines import WORDS
from labsched.log.settings import SchedulerSettings
from labsched.policy import BATCHING
from labsched.replay import vllm_scheduler
from labsched.request import Request
from labsched.vllm.gate import Gate
from labserve.model_shape import ModelShape
from labserve.vllm.engine import VllmScheduler
from labserve.vllm.settings import VllmSettings, Word
from labserve.vllm.setup import IN_FLIGHT
from labserve.vllm.watched import watched_scheduler


class CountedVllm(VllmScheduler):
    """The scheduler of `engine=vllm` as a replay drives the labs' own (:class:`labsched.replay.player.Replay`)."""

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


def make_counted_vllm(word: Word, context: int, vocabulary: int) -> CountedVllm:
    """vLLM's own scheduler with the settings in `word`, for a model of these sizes.

    Raises:
        ValueError: vLLM cannot do what is asked of it.
    """
    served = VllmSettings.of(word, ModelShape(vocabulary, context, 1, head_dim=vllm_scheduler.HEAD))
    config = vllm_scheduler.vllm_config(scheduler_settings(word, served, context, vocabulary))
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    static = BATCHING[word("gpt_model_type") or "inflight_batching"]
    ahead = word("async_scheduling") == "true"
    gate = Gate(served.max_running) if static else None
    scheduler = vllm_scheduler.of_kind(watched_scheduler(AsyncScheduler if ahead else Scheduler, gate), config)
    engine = _CountingLLM(config, scheduler, vllm_scheduler.hasher(config), IN_FLIGHT if ahead else 1)
    return CountedVllm(engine, served, static)


def scheduler_settings(word: Word, served: VllmSettings, context: int, vocabulary: int) -> SchedulerSettings:
    """The same settings as a recording has them."""
    words = {name: word(name) for name in WORDS}
    words["gpt_model_type"] = words["gpt_model_type"] or "inflight_batching"
    kv = served.kv
    return SchedulerSettings(words, kv.blocks, kv.block_size, served.features.max_num_tokens, context, vocabulary)
