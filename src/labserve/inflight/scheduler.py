"""Who is in the batch: static and in-flight batching, and two ways to admit requests to the KV cache.

The engine computes one token for everybody it was given; this decides whom to give it, before each step. It is
single-threaded: whoever owns it calls `submit`, `cancel` and `turn` from one thread.
"""

import time
from collections import deque
from collections.abc import Sequence

from labserve.inflight.blocks import Block
from labserve.inflight.features import Features
from labserve.inflight.job import End, Engine, Job, Turn
from labserve.inflight.kv_budget import KVBudget
from labserve.inflight.memory import Memory
from labserve.inflight.order import Order
from labserve.inflight.policy import Policy
from labserve.params import BadInput
from labserve.seats import Seats


class Scheduler:
    """Keeps at most `max_running` jobs in the engine, within `kv`.

    `static` batching takes a batch when the engine is empty and lets nobody join before its last member is done;
    otherwise jobs join and leave at every step.

    Four questions are asked before each step, and a subclass may answer them otherwise (see ``own.py``): how many
    may join (`places`), who of those that wait is the first (`line`), how much memory must stay free beside a newcomer
    (`reserve`), and who leaves when memory runs out (`victim`).
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
        self.waiting: deque[Job] = deque()  # as they came, the evicted before them
        self.running: list[Job] = []  # the oldest first
        self.seats = Seats(max_running)  # as they are shown; the engine knows of none
        self.memory = Memory(kv, policy, max_running, self.features)
        self._arrivals = 0

    def submit(self, job: Job) -> None:
        """Put a job into the queue. Raises BadInput for one that could never fit."""
        # Whoever may be evicted is computed again with all of its answer so far.
        longest = len(job.prompt) + (job.limit - 1 if self.policy is Policy.MAX_UTILIZATION else 0)
        if not self.features.chunked_context and longest > self.engine.step_tokens:
            raise BadInput(
                "input_ids",
                f"{longest:,} tokens may have to be computed in one step, which computes at most "
                f"{self.engine.step_tokens:,} (max_num_tokens), and enable_chunked_context is off",
            )
        whole = self.kv.needed(len(job.prompt) + job.limit)
        if whole > self.kv.blocks:
            raise BadInput(
                "request_output_len",
                f"{len(job.prompt):,} prompt and {job.limit:,} output tokens need {whole:,} blocks of the KV cache, "
                f"which has {self.kv.blocks:,} (of {self.kv.block_size} tokens)",
            )
        self._arrivals += 1
        job.came = self._arrivals
        self.order.arrived(job, self.waiting)
        self.waiting.append(job)

    def cancel(self, job: Job) -> None:
        """Take a job out of the queue or out of the batch, at once."""
        if job in self.running:
            self._remove(job)
        elif job in self.waiting:
            self.waiting.remove(job)
        job.end = End.CANCELLED

    @property
    def idle(self) -> bool:
        """Nothing to compute, nothing to free."""
        return not (self.waiting or self.running or self.memory.leaving)

    @property
    def places(self) -> int:
        """How many may join the batch now."""
        return 0 if self.static and self.running else self.max_running - len(self.running)

    def line(self) -> list[Job]:
        """Those who wait, in the order in which they will join."""
        return self.order.line(self.waiting)

    def reserve(self) -> int:
        """How many blocks must stay free beside what a newcomer needs.

        With evictions allowed that is one for every other to grow into: or somebody would be evicted soon.
        """
        return len(self.running) if self.policy is Policy.MAX_UTILIZATION else 0

    def victim(self) -> Job:
        """Who leaves when memory runs out: whoever came last."""
        return self.running[-1]

    @property
    def blocks_used(self) -> int:
        """Blocks that are occupied or promised."""
        return self.memory.used(self.running)

    def turn(self) -> Turn:
        """Make room, admit, compute one step, let go of those that are done."""
        preempted = self._preempt()
        ended: list[Job] = []
        # Who was just evicted would be the first to be admitted again: not in the same turn.
        admitted = [] if preempted else self._admit(ended)
        turn = Turn(list(self.running), sum(not job.output for job in self.running), admitted, preempted, ended=ended)
        self._describe(turn)
        freed = [job for job in self.memory.leaving if not self.engine.lingers(job.handle)]
        began = time.monotonic()
        self.engine.step()
        turn.engine_s = time.monotonic() - began
        for job in freed:
            self.memory.leaving.remove(job)
            self.memory.end(job)
        for job, letter in zip(turn.batch, turn.phase, strict=True):
            try:
                tokens, over = self.engine.read(job.handle)
            except Exception as error:  # the engine gave this one up
                self._remove(job)
                job.end, job.error = End.FAILED, error
                turn.ended.append(job)
                turn.accepted.append(0)
                continue
            stopped, tokens = job.take(tokens)
            turn.accepted.append(max(0, len(tokens) - 1) if letter == "d" else 0)
            if tokens:
                job.cached = job.tokens - 1  # of the last one the engine has no keys and values yet
                turn.produced.append((job, tokens))
                self.order.made(job, len(tokens))
            if over or stopped or len(job.output) >= job.limit:
                self._remove(job, dropped=not over)
                job.end = End.DONE
                turn.ended.append(job)
        return turn

    def next_batch(self) -> list[Job]:
        """Who would be in the step if it were computed now: `turn` without its effects."""
        batch, used = list(self.running), self.blocks_used
        while len(batch) > 1 and used > self.kv.blocks:
            batch.pop()
            used = self.memory.used(batch)
        if len(batch) < len(self.running):
            return batch
        places, found = self.places, set[Block]()
        for job in self.line():
            reserve = len(batch) if self.policy is Policy.MAX_UTILIZATION else 0
            need, blocks = self.memory.need(job, found)
            if len(batch) == len(self.running) + places or used + need + reserve > self.kv.blocks:
                break
            if not self._has_tokens(job, batch) or not self.memory.fit(job, found):
                break
            used += need
            found |= set(blocks)
            batch.append(job)
        return batch

    def why(self, batch: Sequence[Job]) -> str:
        """Why the first of those who wait does not come into that batch."""
        if len(batch) >= self.max_running:
            return "no slot"
        if self.static and batch and not self.places:
            return "batch closed"
        line = self.line()
        if line and not self._has_tokens(line[0], batch):
            return "no tokens"
        return "no prefix" if line and not self.memory.fit(line[0]) else "no KV block"

    def _has_tokens(self, job: Job, batch: Sequence[Job]) -> bool:
        """Whether a step of `batch` has room for the whole prompt of `job`, where it must go in one piece."""
        taken = sum(self._share(one) for one in batch)
        return self.features.chunked_context or job.tokens + taken <= self.engine.step_tokens

    def _share(self, job: Job) -> int:
        """The tokens of a step that a member of the batch would like: all of its prompt, or the next and guesses."""
        return 1 + self.features.num_assistant_tokens if job.output and job.left == 1 else job.left

    def _describe(self, turn: Turn) -> None:
        """What the step log says of a step that is about to be computed."""
        turn.blocks, turn.waiting, turn.why = self.blocks_used, self.line(), self.why(turn.batch)
        turn.claims = [self.memory.claim(job) for job in turn.batch]
        turn.cached = [job.found if job in turn.admitted else 0 for job in turn.batch]
        turn.seats = [self.seats.of(job) for job in turn.batch]
        turn.phase = "".join("d" if job.output and job.left == 1 else "p" for job in turn.batch)
        # As both engines do it: a token for each that decodes; what is left of the step goes to prompts, in order.
        left = self.engine.step_tokens - turn.phase.count("d") * (1 + self.features.num_assistant_tokens)
        for job in self.memory.leaving:
            if self.engine.lingers(job.handle):
                left -= self._prefill(job, left)
        for job, letter in zip(turn.batch, turn.phase, strict=True):
            guesses = self._guesses(job) if letter == "d" else 0
            if letter == "d":
                job.cached += 1
                self.memory.grow(job)
            turn.guessed.append(guesses)
            turn.computed.append(1 + guesses if letter == "d" else 0)
        for place, (job, letter) in enumerate(zip(turn.batch, turn.phase, strict=True)):
            if letter == "p":
                turn.computed[place] = self._prefill(job, left)
                left -= turn.computed[place]

    def _prefill(self, job: Job, left: int) -> int:
        """The tokens of a prompt that a step computes, where it has so many left."""
        part = max(0, min(left, job.left)) if job.left > 1 or not job.output else 0
        if part:
            job.cached += part
            self.memory.grow(job)
        return part

    def _guesses(self, job: Job) -> int:
        if not self.features.num_assistant_tokens:
            return 0
        return self.engine.guesses(job.prompt + job.output, job.limit - len(job.output))

    def abandon(self, error: Exception) -> list[Job]:
        """The engine has failed: nothing of it is kept, every job ends with `error`."""
        jobs = [*self.running, *self.waiting]
        for job in self.running:
            self.engine.drop(job.handle)
            self.seats.free(job)
        self.running.clear()
        self.waiting.clear()
        self.memory = Memory(self.kv, self.policy, self.max_running, self.features)
        for job in jobs:
            job.end, job.error = End.FAILED, error
        return jobs

    def _preempt(self) -> list[Job]:
        """Evict one after the other until everybody else has room for a token. They are computed again later."""
        evicted = []
        while len(self.running) > 1 and self.blocks_used > self.kv.blocks:
            job = self.victim()
            if self.features.kv_cache_reuse and job.left > 1:  # half a prompt is no beginning to be found by others
                job = next((one for one in reversed(self.running) if one.left == 1), job)
            # Memory is really free only after the step, but nobody needs it before: see the engine's spare blocks.
            self._remove(job, later=False)
            self.waiting.appendleft(job)
            evicted.append(job)
        return evicted

    def _admit(self, ended: list[Job]) -> list[Job]:
        admitted: list[Job] = []
        places = self.places
        while self.waiting and len(admitted) < places:
            job = self.line()[0]
            if self.blocks_used + self.memory.need(job)[0] + self.reserve() > self.kv.blocks:
                break
            # If another one is at the beginning of this one's prompt, waiting costs nothing: that one's has the step's
            # tokens first anyway, and afterwards there is more of it to be found.
            if not self._has_tokens(job, self.running) or not self.memory.fit(job):
                break
            self.waiting.remove(job)
            ids = job.prompt + job.output
            try:
                job.handle = self.engine.add(ids, job.limit - len(job.output), job.sampling)
            except Exception as error:  # the engine refuses this one; the others are not concerned
                job.end, job.error = End.FAILED, error
                ended.append(job)
                continue
            self.running.append(job)
            self.memory.join(job)
            self.seats.take(job, job.name or job.id)
            self.order.joined(job, self.waiting)
            admitted.append(job)
        return admitted

    def _remove(self, job: Job, dropped: bool = True, later: bool = True) -> None:
        """Out of the batch; its memory is free after the next step (`later`), or at once where the engine ended it."""
        self.running.remove(job)
        self.seats.free(job)
        if dropped:
            self.engine.drop(job.handle)
        if dropped and later:
            self.memory.leaving.append(job)
        else:
            self.memory.end(job)
            job.cached = 0
