"""vLLM's engine in the model's own process: requests in, one step at a time, and what each step did.

It stands where the labs' own scheduler stands (labsched/scheduler.py), so the same driver serves both: but
here `vllm.LLMEngine` decides. Its step is `EngineCore.step` (vllm/v1/engine/core.py): schedule, compute, update.

With asynchronous scheduling it is `EngineCore.step_with_batch_queue`: while the GPU computes a step, the next one is
decided, before it is known which requests the first one ends. Such a request is in the next step too, for nothing.
"""

import math
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

from labsched.features import NONE
from labsched.plan import Because, Shares, StepPlan, waiting_fields
from labsched.policy import Policy
from labsched.request import End, Request, Sampling
from labsched.slots import Slots
from labsched.step import Step
from labsched.vllm.decision import Decision, queue
from labserve.params import STRUCTURED, BadInput, Refusal
from labserve.request import ServedRequest
from labserve.vllm.grammars import Grammars, grammar_of
from labserve.vllm.settings import VllmSettings

if TYPE_CHECKING:
    from labserve.vllm.guide import Guide

PATIENCE_S = 0.005, 0.1  # at least and at most: what a step of a GPU takes, about
CUT = ("abort", "error")  # vllm/v1/engine/__init__.py: FinishReason, of an answer that is not whole


@dataclass(slots=True, eq=False)
class VllmRequest(ServedRequest):
    """A request with what only vLLM has. A scheduler of vLLM's takes others, too."""

    schema: dict[str, Any] | None = None  # JSON schema of its text
    grammar: Any = None  # the future result of trying the grammar of its answer (grammars.py)


@dataclass(slots=True, eq=False)
class VllmTextRequest(VllmRequest):
    """A request of text, which asks for outputs by their names (text.py); `sampling` is vLLM's own."""

    prefix: str = ""  # put before the answer
    more: Sequence[str] = ()  # of text.MORE
    latest: Any = None  # vLLM's last `RequestOutput`
    sent: int = 0  # characters of the answer so far, and so below
    sent_tokens: int = 0
    sent_logprobs: int = 0


class VllmScheduler:
    """Requests in vLLM, by the labs' names (vLLM: `Request`, vllm/v1/request.py).

    Args:
        engine: a `vllm.LLMEngine` whose scheduler is `watched`.
        static: whether a gate lets requests in a batch at a time (labsched/vllm/gate.py).
        guide: a scheduler of the labs' kind, which orders vLLM's queue and its running requests.

    `ahead`: whether a step may be decided while another is in flight, where vLLM schedules asynchronously.
    """

    policy = Policy.MAX_UTILIZATION  # it always admits what fits now
    ahead = True

    def __init__(self, engine: Any, settings: VllmSettings, static: bool = False, guide: "Guide | None" = None) -> None:
        self.static, self._guide = static, guide
        self.engine, self._settings = engine, settings
        self._scheduler = engine.engine_core.engine_core.scheduler
        self.kv, self.max_running = settings.kv, settings.max_running
        self.slots = Slots(settings.max_running)
        # By vLLM's id; the outputs name requests by our own number.
        self._requests: dict[str, Request] = {}
        self._prompts: dict[str, int] = {}  # tokens of each prompt
        self._grammars = Grammars()
        self._because = Because()
        self._came = 0  # requests so far
        self._token_s = 0.0  # of the last step, for each of its tokens
        self._over = 0.0  # monotonic seconds at which the last step's result was there
        self._vocabulary = engine.vllm_config.model_config.get_vocab_size()

    # -- requests -----------------------------------------------------------------------------------------------------

    def compile(self, request: VllmRequest) -> "Future[None] | None":
        """Have the grammar of a request's answer tried in a process of its own (`labserve.vllm.grammars`).

        Returns:
            The result, which may come later; None for a request whose answer follows no grammar.

        Raises:
            Refusal: it is too long, or too many wait.
        """
        asked: Any = structured_outputs(request)
        if asked is not None and request.grammar is None:
            config = self.engine.vllm_config.structured_outputs_config
            request.grammar = self._grammars.compile(*grammar_of(asked, config))
        tried: Future[None] | None = request.grammar
        return tried

    def submit(self, request: Request) -> None:
        """Hand a request over to vLLM, when its grammar is known to compile: `compile` says when that is.

        Raises BadInput for one that could never run, Refusal where vLLM refuses it.
        """
        text = isinstance(request, VllmTextRequest)
        if text:  # vLLM's own limit is that of the sequence
            rest = max(0, self._settings.longest - len(request.prompt))
            request.limit = min(request.sampling.max_tokens or rest, rest)  # type: ignore[union-attr]
        whole = len(request.prompt) + max(request.limit, 1)
        if whole > self._settings.longest:
            raise BadInput(
                "text_input" if text else "request_output_len",
                f"{len(request.prompt):,} prompt and {request.limit:,} output tokens are more than a sequence may have "
                f"({self._settings.longest:,}: the model's context, or the whole KV cache)",
            )
        if isinstance(request, VllmRequest) and (grammar := self.compile(request)):
            grammar.result()
        asked: Any = request.sampling if text else sampling_params(request, self._vocabulary)
        try:
            id = self.engine.add_request(
                str(request.number), {"prompt_token_ids": request.prompt}, asked, priority=request.priority
            )
        except client_errors() as error:
            if asked.structured_outputs:
                raise BadInput(STRUCTURED, str(error)) from error
            raise Refusal(f"vLLM refused the request: {error}") from error
        structured = self._scheduler.requests[id].structured_output_request
        if structured and isinstance(structured.grammar, Exception):  # the schema could not be compiled
            self.engine.abort_request([id], internal=True)
            raise BadInput(STRUCTURED, str(structured.grammar))
        request.handle = id
        self._came += 1
        request.came = self._came
        self._requests[id], self._prompts[id] = request, len(request.prompt)
        if self._guide:
            self._guide.arrived(request)

    def cancel(self, request: Request, error: Exception | None = None) -> None:
        """Take a request out of vLLM, at once: its blocks are free for the next step. With an `error` it has failed."""
        self._abort(request)
        request.end, request.error = End.FAILED if error else End.CANCELLED, error

    @property
    def running(self) -> list[Request]:
        return self._known([request.request_id for request in self._scheduler.running])

    @property
    def waiting(self) -> list[Request]:
        return self._known([request.request_id for request in queue(self._scheduler)])

    @property
    def idle(self) -> bool:
        return not self._requests and not self.in_flight

    @property
    def patience_s(self) -> float:
        """Seconds until the engine waits for the next step, by how long the last one took for each of its tokens."""
        if not self.in_flight:
            return math.inf
        tokens = sum(sum(decided.tokens.values()) for _, decided in self._scheduler.in_flight.steps)
        return min(max(PATIENCE_S[0], self._token_s * tokens), PATIENCE_S[1])

    @property
    def in_flight(self) -> int:
        """Steps that are decided, and whose results have not come."""
        return len(self._scheduler.in_flight.steps)

    def _known(self, ids: Iterable[str]) -> list[Request]:
        requests = map(self._requests.get, ids)
        return [request for request in requests if request is not None]

    def _abort(self, request: Request) -> None:
        if self._requests.pop(request.handle, None):
            if self._guide:
                self._guide.ended(request)
            del self._prompts[request.handle]
            self.engine.abort_request([request.handle], internal=True)
        self.slots.free(request)

    # -- steps --------------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """The requests as they stand. vLLM decides about a step only when it computes it."""
        running = self.running
        shares = Shares("d" * len(running), [0] * len(running), [0] * len(running))
        return StepPlan([], [], running, self.waiting, shares, self._because)

    def step(self, plan: StepPlan | None = None) -> Step:
        """The next step that ends. The plan has no influence on it.

        vLLM decides a step and waits for one. With asynchronous scheduling that is the one before, and where none was
        in flight it decides two. Where it may not run ahead it decides one and waits for it, or for what is in flight.
        It also waits first where every request in flight has ended.
        """
        steps = self._scheduler.in_flight.steps
        needed = any(id in self._requests for _, decided in steps for id in decided.batch)
        grounded = bool(self.in_flight) and not (self.ahead and needed)
        while True:
            self._scheduler.grounded = grounded
            if self._guide and not grounded:
                self._guide.arrange(self._scheduler, self._requests)
            outputs = self.engine.step()
            decided, self._scheduler.landed = self._scheduler.landed, None
            if decided is not None:
                break
            grounded = not self.ahead
        over = time.monotonic()
        step = self._step_of(decided, max(decided.began, self._over), over)
        self._over = over
        self._token_s = (over - step.began) / max(1, sum(step.tokens))
        self._collect(step, {int(output.request_id): output for output in outputs})
        if self._guide:
            self._guide.took(step)
        self._because = decided.because
        return step

    def _step_of(self, decided: Decision, began: float, over: float) -> Step:
        """vLLM's decision as the step log has it, without requests that had ended when it was computed.

        Args:
            began: monotonic seconds at which the engine had nothing else to compute.
            over: when its result was there.
        """
        here, tokens = [*decided.tokens], [*decided.tokens.values()]
        phase = decided.phase(self._prompts)
        if not self._requests.keys() >= decided.tokens.keys():
            left = [id in self._requests for id in here]
            here, tokens = [*compress(here, left)], [*compress(tokens, left)]
            phase = "".join(compress(phase, left))
        admitted = self._known([id for id in here if id in decided.admitted]) if decided.admitted else []
        victims, batch = self._known(decided.preempted), self._known(here)
        for request in victims:
            self.slots.free(request)
        for request in admitted:
            self.slots.take(request, request.name)
        features, drafted = self._settings.features, decided.drafted
        tables = [*map(decided.tables.__getitem__, here)]
        return Step(
            [request.name for request in batch],
            began,
            phase=phase,
            tokens=tokens,
            cached=[decided.admitted.get(id, 0) for id in here] if features.kv_cache_reuse else (),
            guessed=[drafted.get(id, 0) for id in here] if features.speculation != NONE else (),
            rows=self.slots.places(batch),
            blocks=[*map(len, tables)],
            block_ids=tables,
            joined=[request.name for request in admitted],
            evicted=[request.name for request in victims],
            **waiting_fields(self._known(decided.waiting), decided.because),
            kv_blocks_used=decided.blocks_used,
            prefill=phase.count("p"),
            engine_us=round((over - began) * 1e6),
            ahead_us=round((began - decided.began) * 1e6) or None,
            mask_us=None if decided.mask_s is None else round(decided.mask_s * 1e6),
            in_vain=len(decided.tokens) - len(batch) if began > decided.began else None,
            requests=batch,
        )

    def _collect(self, step: Step, outputs: dict[int, Any]) -> None:
        """Take the new tokens; requests that are done leave."""
        for request, letter in zip(step.requests, step.phase, strict=True):
            if (output := outputs.get(request.number)) is None:
                step.add(request, 0, letter)
                continue
            answer = output.outputs[0]
            tokens = list(answer.token_ids)
            if isinstance(request, VllmTextRequest):  # its outputs are whole: text is spelled from all of it
                request.latest, tokens = output, tokens[len(request.output) :]
            elif isinstance(request, ServedRequest) and request.scored:
                request.scored.scores += answer.logprobs or []
            stopped, tokens = request.take(tokens)
            if stopped or output.finished:
                failed = output.finished and not stopped and answer.finish_reason in CUT
                request.end = End.FAILED if failed else End.DONE
                request.error = Refusal("vLLM gave the request up") if failed else None
                self._abort(request)  # harmless for one that vLLM has ended itself
            step.add(request, len(tokens), letter)

    def abandon(self, error: Exception) -> list[Request]:
        """A step has failed: every request ends with `error`, and no block keeps what may not have been computed.

        Raises an error of vLLM's where even that fails: the engine is dead.
        """
        requests = list(self._requests.values())
        self._scheduler.in_flight.steps.clear()
        if (in_flight := self.engine.engine_core.engine_core.batch_queue) is not None:
            in_flight.clear()
        self.engine.abort_request(list(self._requests), internal=True)
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM keeps blocks of requests that were aborted")
        self._requests.clear()
        self._prompts.clear()
        for request in requests:
            self.slots.free(request)
            request.end, request.error = End.FAILED, error
        return requests


def client_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """vLLM's exceptions for a refused request, and `others`: ValueError, in newer releases also a class of its own."""
    import vllm.exceptions

    own = getattr(vllm.exceptions, "VLLMClientError", None)
    return (*others, ValueError, own) if own else (*others, ValueError)


def structured_outputs(request: Request) -> Any:
    """vLLM's `StructuredOutputsParams` of a request; None where its answer follows no grammar."""
    if isinstance(request, VllmTextRequest):
        return request.sampling.structured_outputs  # type: ignore[union-attr]
    if not isinstance(request, VllmRequest) or request.schema is None:
        return None
    from vllm.sampling_params import StructuredOutputsParams

    return StructuredOutputsParams(json=request.schema)


def sampling_params(request: Request, vocabulary: int) -> Any:
    """vLLM's `SamplingParams` of a request: only new tokens come back, and as ids."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    asked, structured = request.sampling or Sampling(), structured_outputs(request)
    scored = request.scored if isinstance(request, ServedRequest) else None
    # A client that wants no end token sends an id that there is not.
    ends = asked.end_id is not None and 0 <= asked.end_id < vocabulary
    return SamplingParams(
        max_tokens=request.limit,
        min_tokens=min(asked.min_length, request.limit),
        temperature=asked.temperature if asked.sample else 0.0,
        top_k=asked.top_k if asked.sample else 0,
        top_p=asked.top_p if asked.sample else 1.0,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        seed=asked.seed if asked.sample else None,
        stop_token_ids=[asked.end_id] if ends else None,
        # A sequence without end_id runs to its limit, as behind the other engines; but not beyond what a schema allows.
        ignore_eos=structured is None,
        structured_outputs=structured,
        logprobs=scored.rivals if scored else None,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
