"""The scheduler: which requests are in the batch at each step, and how much of each is computed.

It is single-threaded: its owner calls `submit`, `cancel`, `plan` and `step` from one thread.
"""

import math
import time
from collections import deque
from collections.abc import Sequence

from labsched.batch import Batch
from labsched.plan import Because, Shares, StepPlan, draft_of, share_out
from labsched.policy import Policy
from labsched.request import Request
from labsched.step import Step


class Scheduler(Batch):
    """Keeps at most `max_running` requests in the engine, within `kv` (vLLM: vllm/v1/core/sched/scheduler.py).

    `static` batching admits a batch when the engine is empty, and nothing more before its last request ends.
    In-flight batching admits and ends requests at every step.

    Each plan asks five questions, which a subclass may answer in another way (see ``own.py``): how many requests may
    join (`places`), in which order (`line`), how much memory stays free (`reserve`), which request is preempted
    (`victim`), and how many tokens of the step each prompt gets (`share`). They are asked of a draft: a copy of the
    scheduler, on which the plan's decisions so far have been made.
    A plan may be made several times before it is carried out, so an answer must change nothing.
    """

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

    # -- what the server's loop asks, where vLLM's scheduler has another answer ----------------------------------------

    @property
    def in_flight(self) -> int:
        """Steps that are decided and whose results have not come: none, because a step ends before the next plan."""
        return 0

    @property
    def patience_s(self) -> float:
        """Seconds for which requests may be received before the engine would stand idle: it already does."""
        return math.inf

    # -- the decision -------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """Decide about the next step, on a draft: the scheduler itself is as it was."""
        draft = draft_of(self)
        draft.running, draft.waiting, draft.memory = list(self.running), deque(self.waiting), self.memory.draft()
        admitted: list[Request] = []
        victims, because = draft._preempt()
        if victims:  # the first of them would be admitted again: not in the same step
            line = draft.line()
        else:
            admitted, line, because = draft._admit()
        return StepPlan(victims, admitted, draft.running, line, draft._shares(), because)

    def _preempt(self) -> tuple[list[Request], Because]:
        """On a draft: preempt one request after the other until the rest has room for its next tokens."""
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
        """On a draft: admit requests in their order.

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
                self.order = self.order.draft()
            self.waiting.remove(request)
            self.running.append(request)
            self.memory.plan_to_join(request)
            self.order.joined(request, self.waiting)
            admitted.append(request)
        return admitted, [], Because()

    def _refusal(self, request: Request, places: int) -> Because:
        """Why a request cannot join the batch, as planned so far; an empty reason if it can."""
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
