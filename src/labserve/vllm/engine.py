"""vLLM's engine in the model's own process: requests in, one step at a time, and what each step did.

It stands where the labs' own scheduler stands (labsched/scheduler.py), so the same `model.py` serves both: but
here `vllm.LLMEngine` decides. Its step is `EngineCore.step` (vllm/v1/engine/core.py): schedule, compute, update.

With asynchronous scheduling it is `EngineCore.step_with_batch_queue`: while the GPU computes a step, the next one is
decided, before it is known which requests the first one ends. Such a request is in the next step too, for nothing.
"""

import math
import time
from collections.abc import Iterable
from itertools import compress
from typing import Any

from labsched.plan import Because, Shares, StepPlan
from labsched.policy import Policy
from labsched.request import End, Request
from labsched.sampling_options import Sampling
from labsched.slots import Slots
from labsched.step import Step
from labsched.vllm.decision import Decision, queue
from labserve.params import STRUCTURED, BadInput, Refusal
from labserve.vllm.settings import VllmSettings

PATIENCE_S = 0.005, 0.1  # at least and at most: what a step of a GPU takes, about
DEAD = "vLLM's engine has ended after an error (see the server's log); restart the stack"


class VllmScheduler:
    """Requests in vLLM, by the labs' names (vLLM: `Request`, vllm/v1/request.py).

    Args:
        engine: a `vllm.LLMEngine` whose scheduler is `watched`.
        static: whether a gate lets requests in a batch at a time (labserve/vllm/gate.py).

    `ahead`: whether a step may be decided while another is in flight, where vLLM schedules asynchronously.
    """

    policy = Policy.MAX_UTILIZATION  # it always admits what fits now
    ahead = True

    def __init__(self, engine: Any, settings: VllmSettings, static: bool = False) -> None:
        self.static = static
        self.engine, self._settings = engine, settings
        self._scheduler = engine.engine_core.engine_core.scheduler
        self.kv, self.max_running = settings.kv, settings.max_running
        self.slots = Slots(settings.max_running)
        # By vLLM's id; the outputs name requests by our own number.
        self._requests: dict[str, Request] = {}
        self._prompts: dict[str, int] = {}  # tokens of each prompt
        self._because = Because()
        self._came = 0  # requests so far
        self._dead = False
        self._token_s = 0.0  # of the last step, for each of its tokens
        self._over = 0.0  # monotonic seconds at which the last step's result was there
        self._vocabulary = engine.vllm_config.model_config.get_vocab_size()

    # -- requests -----------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Hand a request over to vLLM. Raises BadInput for one that could never run, Refusal where vLLM refuses it."""
        if self._dead:
            raise Refusal(DEAD)
        text = request.asked is not None
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
            outputs = self.engine.step()
            decided, self._scheduler.landed = self._scheduler.landed, None
            if decided is not None:
                break
            grounded = not self.ahead
        over = time.monotonic()
        step = self._account(decided, max(decided.began, self._over), over)
        self._over = over
        self._token_s = step.engine_s / max(1, sum(step.computed))
        self._collect(step, {int(output.request_id): output for output in outputs})
        self._because = because_of(decided)
        return step

    def _account(self, decided: Decision, began: float, over: float) -> Step:
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
        none = [0] * len(here)
        admitted = self._known([id for id in here if id in decided.admitted]) if decided.admitted else []
        victims = self._known(decided.preempted)
        for request in victims:
            self.slots.free(request)
        for request in admitted:
            self.slots.take(request, request.name or request.id)
        drafted = [decided.drafted.get(id, 0) for id in here] if decided.drafted else none
        shares = Shares(phase, tokens, drafted)
        batch, waiting = self._known(here), self._known(decided.waiting)
        plan = StepPlan(victims, admitted, batch, waiting, shares, because_of(decided))
        tables = [*map(decided.tables.__getitem__, here)]
        return Step(
            plan,
            began,
            batch,
            shares.phase,
            shares.tokens,
            shares.drafted,
            prefill=shares.phase.count("p"),
            admitted=admitted,
            blocks=decided.blocks_used,
            claims=[*map(len, tables)],
            slots=self.slots.places(batch),
            cached=[decided.admitted.get(id, 0) for id in here] if admitted else none,
            ended=[],
            engine_s=over - began,
            ahead_s=began - decided.began,
            mask_s=decided.mask_s,
            block_ids=tables,
            in_vain=len(decided.tokens) - len(batch),
        )

    def _collect(self, step: Step, outputs: dict[int, Any]) -> None:
        """Take the new tokens; requests that are done leave."""
        accepted, produced = step.accepted, step.produced
        for request, letter in zip(step.batch, step.phase, strict=True):
            if (output := outputs.get(request.number)) is None:
                accepted.append(0)
                continue
            answer = output.outputs[0]
            tokens = list(answer.token_ids)
            if request.asked is not None:  # its outputs are whole: text is spelled from all of it
                request.latest, tokens = output, tokens[len(request.output) :]
            if request.rivals is not None:
                request.scores += answer.logprobs or []
            stopped, tokens = request.take(tokens)
            accepted.append(len(tokens) - 1 if letter == "d" and tokens else 0)
            if tokens:
                produced.append((request, tokens))
            if not stopped and not output.finished:
                continue
            failed = answer.finish_reason == "error"
            request.end = End.FAILED if failed else End.DONE
            request.error = Refusal("vLLM gave the request up") if failed else None
            self._abort(request)  # harmless for one that vLLM has ended itself
            step.ended.append(request)

    def abandon(self, error: Exception) -> list[Request]:
        """A step has failed: every request ends with `error`, and no block keeps what may not have been computed."""
        requests = list(self._requests.values())
        self._scheduler.in_flight.steps.clear()
        try:
            if (in_flight := self.engine.engine_core.engine_core.batch_queue) is not None:
                in_flight.clear()
            self.engine.abort_request(list(self._requests), internal=True)
            self._dead = not self.engine.reset_prefix_cache()
        except Exception:
            self._dead = True
        self._requests.clear()
        self._prompts.clear()
        for request in requests:
            self.slots.free(request)
            request.end, request.error = End.FAILED, Refusal(DEAD) if self._dead else error
        return requests


def because_of(decided: Decision) -> Because:
    """Why the first waiting request was not admitted, as our own scheduler says it."""
    return Because(decided.because.why, **decided.because.numbers)


def client_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """vLLM's exceptions for a refused request, and `others`: ValueError, in newer releases also a class of its own."""
    import vllm.exceptions

    own = getattr(vllm.exceptions, "VLLMClientError", None)
    return (*others, ValueError, own) if own else (*others, ValueError)


def sampling_params(request: Request, vocabulary: int) -> Any:
    """vLLM's `SamplingParams` of a request: only new tokens come back, and as ids."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    asked = request.sampling or Sampling()
    # A client that wants no end token sends an id that there is not.
    ends = asked.end_id is not None and 0 <= asked.end_id < vocabulary
    schema = None if request.schema is None else StructuredOutputsParams(json=request.schema)
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
        ignore_eos=request.schema is None,
        structured_outputs=schema,
        logprobs=request.rivals,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
