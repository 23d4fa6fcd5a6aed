"""The queue and the running batch: how requests get in, get their tokens and get out."""

from collections import deque
from contextlib import suppress

from labsched.engine import Engine
from labsched.errors import BadInput
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.memory import Memory
from labsched.order import Order
from labsched.pace import Pace
from labsched.plan import StepPlan
from labsched.policy import Policy
from labsched.request import End, Request
from labsched.slots import Slots
from labsched.step import Step


class Batch:
    """At most `max_running` requests in the engine, within `kv`, and a queue of waiting requests.

    Its subclass, the scheduler, decides what happens at a step. vLLM has both in one class; this part is
    `add_request`, `finish_requests` and `update_from_output` there (vllm/v1/core/sched/scheduler.py).
    """

    def __init__(
        self,
        engine: Engine,
        kv: KVBudget,
        policy: Policy,
        max_running: int,
        static: bool,
        features: Features | None = None,
        order: Order | None = None,
    ) -> None:
        self.engine = engine
        self.kv = kv
        self.policy = policy
        self.max_running = max_running
        self.static = static
        self.features = features or Features(max_num_tokens=engine.step_tokens)
        self.order = order or Order()
        self.waiting: deque[Request] = deque()  # in order of arrival, preempted requests before the others
        self.running: list[Request] = []  # in order of admission
        self.slots = Slots(max_running)  # only shown: the engine knows nothing of them
        self.memory = Memory(kv, policy, max_running, self.features)
        self.pace: Pace | None = None
        self._arrivals = 0

    def submit(self, request: Request) -> None:
        """Put a request into the queue. Raises BadInput for one that could never be admitted."""
        # A preempted request is computed again together with its answer so far.
        preemptible = self.policy is Policy.MAX_UTILIZATION and request.resumable
        longest = len(request.prompt) + (request.limit - 1 if preemptible else 0)
        if not self.features.chunked_context and longest > self.engine.step_tokens:
            raise BadInput(
                "input_ids",
                f"{longest:,} tokens may have to be computed in one step, which computes at most "
                f"{self.engine.step_tokens:,} (max_num_tokens), and enable_chunked_context is off",
            )
        whole = self.kv.needed(len(request.prompt) + request.limit)
        if whole > self.kv.blocks:
            raise BadInput(
                "request_output_len",
                f"{len(request.prompt):,} prompt and {request.limit:,} output tokens need {whole:,} blocks of the KV "
                f"cache, which has {self.kv.blocks:,} (of {self.kv.block_size} tokens)",
            )
        self._arrivals += 1
        request.came = self._arrivals
        self.order.arrived(request, self.waiting)
        self.waiting.append(request)

    def cancel(self, request: Request, error: Exception | None = None) -> None:
        """Take a request out of the queue or the batch, at once. With an `error` it has failed."""
        if request in self.running:
            self._drop(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._finish(request, End.FAILED if error else End.CANCELLED, error)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to compute and nothing to free."""
        return not (self.waiting or self.running or self.memory.leaving)

    @property
    def blocks_used(self) -> int:
        """Blocks that are occupied or promised."""
        return self.memory.used(self.running)

    def apply(self, plan: StepPlan) -> list[Request]:
        """Preempt and admit as planned. Returns the requests that the engine refused."""
        refused = []
        for request in plan.victims:
            # Nothing is admitted in this step, so the engine's spare blocks are enough until the memory is free.
            self._leave(request)
            self.engine.drop(request.handle)
            self.memory.end(request)
            self.waiting.appendleft(request)
        for request in plan.admitted:
            self.waiting.remove(request)
            try:
                ids = request.prompt + request.output
                request.handle = self.engine.add(ids, request.limit - len(request.output), request.sampling_left)
            except Exception as error:  # the engine refuses this request; the others go on
                self._finish(request, End.FAILED, error)
                refused.append(request)
                continue
            self.running.append(request)
            self.memory.join(request)
            self.slots.take(request, request.name)
            self.order.joined(request, self.waiting)
        return refused

    def collect(self, step: Step) -> None:
        """Take the new tokens; requests that are done leave the batch."""
        for request, letter in zip(step.requests, step.phase, strict=True):
            try:
                tokens, over = self.engine.read(request.handle)
            except Exception as error:  # the engine gave this one up
                self._drop(request)
                self._finish(request, End.FAILED, error)
                step.add(request, 0, letter)
                continue
            stopped, tokens = request.take(tokens)
            if tokens:
                request.cached = request.tokens - 1  # the engine has no keys and values of the last one yet
                self.order.made(request, len(tokens))
            if over or stopped or len(request.output) >= request.limit:
                if over:
                    self._leave(request)
                    self.memory.end(request)
                else:
                    self._drop(request)
                self._finish(request, End.DONE)
            step.add(request, len(tokens), letter)

    def abandon(self, error: Exception) -> list[Request]:
        """The engine has failed: nothing in it is kept, and every request ends with `error`."""
        requests = [*self.running, *self.waiting]
        for request in self.running:
            self.slots.free(request)
            with suppress(Exception):
                self.engine.drop(request.handle)
        self.running.clear()
        self.waiting.clear()
        self.memory = Memory(self.kv, self.policy, self.max_running, self.features)
        for request in requests:
            self._finish(request, End.FAILED, error)
        return requests

    def _finish(self, request: Request, end: End, error: Exception | None = None) -> None:
        request.end, request.error = end, error
        self.order.ended(request)

    def _leave(self, request: Request) -> None:
        self.running.remove(request)
        self.slots.free(request)

    def _drop(self, request: Request) -> None:
        """Take a request out of the batch before the engine has ended it: its memory is free after the next step."""
        self._leave(request)
        self.engine.drop(request.handle)
        self.memory.leaving.append(request)
