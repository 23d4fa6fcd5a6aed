"""The scheduler: which requests are in the batch at each step, and how much of each is computed.

It is single-threaded: its owner calls `submit`, `cancel`, `plan` and `step` from one thread.
"""

import math
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from labsched.engine import Engine
from labsched.errors import BadInput
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.memory import Memory
from labsched.order import Order
from labsched.pace import Pace
from labsched.plan import Because, Shares, StepPlan, copy_of, share_out
from labsched.policy import Policy
from labsched.request import End, Request
from labsched.slots import Slots
from labsched.step import Step


class Scheduler:
    """Keeps at most `max_running` requests in the engine, within `kv` (vLLM: vllm/v1/core/sched/scheduler.py).

    `static` batching admits a batch when the engine is empty, and nothing more before its last request ends.
    In-flight batching admits and ends requests at every step.

    Each plan asks five questions, which a subclass may answer in another way (see ``own.py``): how many requests may
    join (`places`), in which order (`line`), how much memory stays free (`reserve`), which request is preempted
    (`victim`), and how many tokens of the step each prompt gets (`share`). They are asked of a copy of the
    scheduler, on which the plan's decisions so far have been made. A plan may be made several times before it is
    carried out, so an answer must change nothing.
    """

    # What the server's loop asks, where vLLM's scheduler has another answer: the steps that are decided and whose
    # results have not come (a step ends before the next plan), and for how many seconds requests may be received before
    # the engine stands idle (it already does).
    in_flight = 0
    patience_s = math.inf

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

    # -- the five questions -------------------------------------------------------------------------------------------

    @property
    def places(self) -> int:
        """How many requests may join the batch now."""
        return 0 if self.static and self.running else self.max_running - len(self.running)

    def line(self) -> list[Request]:
        """The requests that wait, in the order in which they will be considered."""
        return self.order.line(self.waiting)

    def reserve(self) -> int:
        """How many blocks must stay free next to what a new request needs.

        Where requests can be preempted, one for each running request to grow into: else the next preemption is near.
        """
        return len(self.running) if self.policy is Policy.MAX_UTILIZATION else 0

    def victim(self) -> Request:
        """The request to preempt when memory runs out: the one that the order would admit last."""
        return self.order.victim(self.running)

    def share(self, budget: int, decoding: int, left: Sequence[int]) -> list[int]:
        """How many tokens of each prompt the next step computes: as many as fit, in order.

        Args:
            budget: the tokens that the step computes at most.
            decoding: how many of them the decoding requests take: one each, and their drafts.
            left: the tokens that each prompt needs, in the order in which they joined.
        """
        parts, rest = [], budget - decoding
        for tokens in left:
            parts.append(max(0, min(rest, tokens)))
            rest -= parts[-1]
        return parts

    # -- requests -----------------------------------------------------------------------------------------------------

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

    # -- the decision -------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Decide about the next step, on a copy: the scheduler itself is as it was."""
        copy = copy_of(self)
        copy.running, copy.waiting, copy.memory = list(self.running), deque(self.waiting), self.memory.copy()
        admitted: list[Request] = []
        victims, because = copy._preempt()
        if victims:  # the first of them would be admitted again: not in the same step
            line = copy.line()
        else:
            admitted, line, because = copy._admit()
        return StepPlan(victims, admitted, copy.running, line, copy._shares(), because)

    def _preempt(self) -> tuple[list[Request], Because]:
        """On a copy: preempt one request after the other until the rest has room for its next tokens."""
        victims: list[Request] = []
        before = used = self.blocks_used
        while len(self.running) > 1 and used > self.kv.blocks:
            request = self._preemptible(self.victim())
            self.running.remove(request)
            self.memory.plan_to_end(request)
            self.waiting.appendleft(request)
            victims.append(request)
            used = self.blocks_used
        return victims, Because("no KV block", {"need": 0, "used": before, "reserve": 0, "blocks": self.kv.blocks})

    def _preemptible(self, request: Request) -> Request:
        """The request itself, or another one if it could not be computed again, or its memory would not be free."""
        resumable = [other for other in (request, *reversed(self.running)) if other.resumable]
        free = [other for other in resumable if not self.engine.must_finish(other.handle)]
        return (free or resumable or [request])[0]

    def _admit(self) -> tuple[list[Request], list[Request], Because]:
        """On a copy: admit requests in their order.

        Returns the admitted requests, the others in their order, and why the first of the others is not admitted.
        """
        admitted: list[Request] = []
        places = self.places
        while self.waiting:
            line = self.line()
            request = line[0]
            because = self._refusal(request, places - len(admitted))
            if because.why:
                return admitted, line, because
            if not admitted:
                self.order = self.order.copy()
            self.waiting.remove(request)
            self.running.append(request)
            self.memory.plan_to_join(request)
            self.order.joined(request, self.waiting)
            admitted.append(request)
        return admitted, [], Because()

    def _refusal(self, request: Request, places: int) -> Because:
        """Why a request cannot join the batch, as planned so far; no reason if it can."""
        if places <= 0:
            return Because("no slot" if len(self.running) >= self.max_running else "batch closed")
        need, used, reserve = self.memory.need(request), self.blocks_used, self.reserve()
        if need + used + reserve > self.kv.blocks:
            numbers = {"need": need, "used": used, "reserve": reserve, "blocks": self.kv.blocks}
            return Because("no KV block", numbers)
        if not self.features.chunked_context and request.tokens > (room := self._room()):
            return Because("no tokens", {"tokens": request.tokens, "room": room})
        if not self.memory.fit(request):
            # Another request is computing the beginning of this prompt. Waiting costs nothing: the other one gets the
            # step's tokens first anyway, and afterwards more of the beginning is in the cache.
            return Because("no prefix")
        return Because()

    def _room(self) -> int:
        """The tokens that the planned batch leaves of a step, if no prompt goes in pieces."""
        decoding = 1 + self.features.num_assistant_tokens
        taken = sum(decoding if request.decodes else self.memory.left(request) for request in self.running)
        return self.engine.step_tokens - taken

    def _shares(self) -> Shares:
        """The tokens that the next step computes for each running request, and for prompts that must be finished."""
        dropped = [request for request in self.memory.leaving if self.engine.must_finish(request.handle)]
        draft = self.features.num_assistant_tokens
        tokens, left = self.engine.step_tokens, self.memory.left
        return share_out(self.running, dropped, tokens, draft, left, self._drafts, self.share)

    def _drafts(self, request: Request) -> int:
        if not self.features.num_assistant_tokens:
            return 0
        return self.engine.drafts(request.prompt + request.output, request.limit - len(request.output))

    # -- the step -----------------------------------------------------------------------------------------------------

    def step(self, plan: StepPlan | None = None) -> Step:
        """Carry out a plan, compute one step, and let go of the requests that end with it.

        Six steps with 5 blocks of 2 tokens, under `max_utilization` (`CountingEngine` computes nothing and counts):

        >>> from labsched import CountingEngine, KVBudget
        >>> engine = CountingEngine(step_tokens=8)
        >>> scheduler = engine.scheduler = Scheduler(engine, KVBudget(5, 2), Policy.MAX_UTILIZATION, 2, False)
        >>> for name, prompt, limit in (("a", 3, 4), ("b", 2, 4), ("c", 2, 2)):
        ...     scheduler.submit(Request(name, [0] * prompt, limit))
        >>> for _ in range(6):
        ...     step = scheduler.step()
        ...     for name, letter, tokens in zip(step.ids, step.phase, step.tokens):
        ...         print(f"{name}:{letter}{tokens}", end=" ")
        ...     print("| waiting", *step.waiting, "|", step.why, step.because)
        a:p3 b:p2 | waiting c | no slot {}
        a:d1 b:d1 | waiting c | no slot {}
        a:d1 | waiting b c | no KV block {'need': 0, 'used': 6, 'reserve': 0, 'blocks': 5}
        a:d1 | waiting b c | no KV block {'need': 3, 'used': 4, 'reserve': 1, 'blocks': 5}
        b:p4 | waiting c | no KV block {'need': 2, 'used': 3, 'reserve': 1, 'blocks': 5}
        b:d1 | waiting c | no KV block {'need': 2, 'used': 3, 'reserve': 1, 'blocks': 5}

        In the third step b is preempted: with it, 6 blocks would be in use. It returns in the fifth step, when a has
        ended, and its four tokens are computed again.
        """
        plan = plan or self.plan()
        began = time.monotonic()
        refused = self.apply(plan)
        shares = self._shares() if refused else plan.shares
        batch = list(self.running)
        joined = {request for request in plan.admitted if not request.end}
        step = Step(
            [request.name for request in batch],
            began,
            phase=shares.phase,
            tokens=shares.tokens,
            cached=[request.found * (request in joined) for request in batch] if self.features.kv_cache_reuse else (),
            guessed=shares.drafted if self.features.num_assistant_tokens else (),
            rows=self.slots.places(batch),
            blocks=[self.memory.claim(request) for request in batch],
            joined=[request.name for request in plan.admitted if request in joined],
            evicted=[request.name for request in plan.victims],
            **plan.queue_fields(),
            kv_blocks_used=(used := self.blocks_used),
            prefill=sum(not request.output for request in batch),
            requests=batch,
            finished=refused,
        )
        assert used <= self.kv.blocks or len(batch) <= 1, f"{used} blocks used, of {self.kv.blocks}"
        contexts = [request.cached + count for request, count in zip(batch, shares.tokens, strict=True)]
        self.memory.advance(batch, shares)
        freed = [request for request in self.memory.leaving if not self.engine.must_finish(request.handle)]
        computing = time.monotonic()
        self.engine.step()
        step.engine_us = round((time.monotonic() - computing) * 1e6)
        if self.pace:
            step.paced_us = round(self.pace.wait(shares.tokens, contexts, computing) * 1e6)
        self.memory.end_dropped(freed)
        self.collect(step)
        return step

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
