"""What holds of every step of a scheduler, whatever is asked in whatever order: of ours and of vLLM's.

A machine of Hypothesis submits, cancels and steps at random.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as some
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from labsched.blocks import Block, Blocks
from labsched.counting import CountingEngine, KnownAnswer
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.order import Fair, Priority, ShortestFirst, order
from labsched.plan import StepPlan
from labsched.policy import Policy
from labsched.request import End, Request, Sampling
from labsched.scheduler import Scheduler
from labsched.step import Step
from labserve.params import BadInput

SIZE = 4  # tokens of a block
BEGINNINGS: tuple[list[int], ...] = ([1, 2, 3, 4], [], [1, 2, 3, 4, 5, 6, 7, 8, 8, 8], [5] * 16)  # that prompts share
KINDS = (
    *(None, None, None, Sampling(), Sampling(min_length=5)),
    *(Sampling(sample=True, seed=3), Sampling(presence_penalty=1.0)),  # these cannot be computed again
)
Asked = tuple[list[int], int, str, int, Sampling | None]
ASKED = some.tuples(
    some.builds(
        lambda beginning, rest: [*beginning, *rest] or [7],
        some.sampled_from(BEGINNINGS),
        some.lists(some.integers(0, 1), max_size=5),  # few, so that prompts also end alike, in the midst of a block
    ),
    some.sampled_from([20, 7, 24, 1, 2]),  # the limit
    some.sampled_from("ab"),
    some.integers(1, 3),
    some.sampled_from(KINDS),
)
MOST_STEPS = 3000
LONGEST = 128  # tokens of a sequence, of those that are asked for: more than there are blocks for


# To shrink what breaks a rule takes minutes: add Phase.shrink where an example is too long to read.
SETTINGS = settings(
    stateful_step_count=12,
    deadline=None,  # it also runs in a process that has no profile of ours
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Written(Blocks):
    """Blocks with what stands in them; what is written to one is what each holder has there, if it has anything."""

    def __init__(self, count: int, size: int) -> None:
        super().__init__(count, size)
        self.slots: dict[Block, dict[int, int]] = {}

    def grow(self, owner: object, tokens: list[int], computed: int) -> None:  # type: ignore[override]
        table = self._tables[owner]
        before, last = table.tokens, table.blocks[-1] if table.blocks else None
        super().grow(owner, tokens, computed)
        place = -(-before // self.size) - 1
        if last is not None and before % self.size and table.blocks[place] is not last:
            self.slots[table.blocks[place]] = dict(self.slots[last])  # copied before it is written to
        for n in range(before, computed):
            block = table.blocks[n // self.size]
            holders = [one for one, table in self._tables.items() if block in table.blocks and isinstance(one, Request)]
            assert all(one.ids[n : n + 1] in ([], tokens[n : n + 1]) for one in holders)
            self.slots.setdefault(block, {})[n % self.size] = tokens[n]

    def stands(self, owner: object, tokens: list[int], count: int) -> bool:
        blocks = self._tables[owner].blocks
        return all(self.slots.get(blocks[n // self.size], {}).get(n % self.size) == tokens[n] for n in range(count))

    def distinct(self) -> int:
        return len({block for table in self._tables.values() for block in table.blocks})


def names(jobs: Iterable[Request]) -> list[str]:
    return [job.name for job in jobs]


class Rules(RuleBasedStateMachine):
    """Requests come, leave and are computed; after each step the rules are held against what the step says it did.

    A subclass makes the scheduler, and adds what holds of that one alone.
    """

    static: bool
    word: str  # of the order
    of: Any
    tokens: int  # of a step

    def make(self, reuse: bool, chunked: bool, batch: int, blocks: int, tokens: int) -> None:
        """Set `of` and `tokens`."""
        raise NotImplementedError

    def prepare(self, job: Request) -> None:
        """What a request needs before it is submitted."""

    def can_be_served(self, job: Request) -> bool:
        return -(-(len(job.prompt) + job.limit) // SIZE) <= int(self.of.kv.blocks)

    def as_it_is(self) -> object:
        """What a plan may not change."""
        return list(self.of.running), list(self.of.waiting)

    def after(self, plan: StepPlan, step: Step, running: list[Request]) -> None:
        """What else holds of a step; those in `running` were in the batch before."""

    def between(self) -> None:
        """What else holds between two steps."""

    def at_the_end(self) -> None:
        """What else holds when all have ended."""

    @initialize(
        reuse=some.booleans(),
        chunked=some.sampled_from([True, True, False]),
        batch=some.sampled_from([4, 3, 2, 1]),
        blocks=some.integers(7, 14),
        tokens=some.sampled_from([16, 7, 64, 4]),
        asked=some.lists(ASKED, min_size=3, max_size=6),
    )
    def begin(self, reuse: bool, chunked: bool, batch: int, blocks: int, tokens: int, asked: list[Asked]) -> None:
        self.jobs: list[Request] = []
        self.slot: dict[str, int] = {}
        self.steps = 0
        self.make(reuse, chunked, batch, blocks, tokens)
        self.submit_some(asked)

    @rule(asked=some.lists(ASKED, min_size=1, max_size=4))
    def submit_some(self, asked: list[Asked]) -> None:
        for prompt, limit, tenant, priority, kind in asked:
            number = len(self.jobs) + 1
            self.submit(Request(str(number), prompt, limit, kind, number=number, tenant=tenant, priority=priority))

    def submit(self, job: Request) -> None:
        self.prepare(job)
        try:
            self.of.submit(job)
        except BadInput:
            assert not self.can_be_served(job), "it could have been served"
            return
        assert self.can_be_served(job), "it can never be served"
        self.jobs.append(job)

    @precondition(lambda self: self.of.running or self.of.waiting)
    @rule(which=some.integers(0, 100))
    def cancel(self, which: int) -> None:
        present = [*self.of.running, *self.of.waiting]
        job = present[which % len(present)]
        self.of.cancel(job)
        assert job.end is End.CANCELLED
        assert job not in self.of.running and job not in self.of.waiting

    @rule(count=some.integers(1, 6))
    def steps_of_all(self, count: int) -> None:
        for _ in range(count):
            if not self.of.idle:
                self.step()

    def step(self) -> None:
        before, running, leaving = self.as_it_is(), list(self.of.running), len(self.of.memory.leaving)
        outputs = {job: len(job.output) for job in self.jobs}
        plan = self.of.plan()
        assert self.as_it_is() == before, "a plan changes nothing"
        step = self.of.step()
        self.steps += 1
        assert {*step.ids, *step.waiting, *names(self.of.running)} == {
            job.name for job in self.jobs if not job.end or job in step.finished
        }
        assert names(step.requests) == step.ids and step.batch <= self.of.max_running
        assert sum(step.tokens) <= self.tokens
        assert step.kv_blocks_used <= self.of.kv.blocks + leaving  # their memory is free a step later: the spare blocks
        assert not step.joined or not step.evicted, "who is preempted is not admitted in the same step"
        assert bool(step.why) == bool(step.waiting or step.evicted)
        for job in (job for job in self.jobs if job.name in step.evicted):
            assert self.of.policy is Policy.MAX_UTILIZATION and job.resumable and job in running
        for job, letter, count in zip(step.requests, step.phase, step.tokens, strict=True):
            made = len(job.output) - outputs[job]
            assert made <= 1 and (letter == "p" or (made, count) == (1, 1)), "a request that decodes gets its token"
            if letter == "p" and not self.of.features.chunked_context:
                assert made == 1, "without chunks a prompt is computed in one step"
        assert {job for job, _ in step.produced} == {job for job in self.jobs if len(job.output) > outputs[job]}
        self._keeps_slots(step)
        self.after(plan, step, running)

    def _keeps_slots(self, step: Step) -> None:
        slots = dict(zip(step.ids, step.rows, strict=True))
        assert len({*slots.values()}) == len(slots) and all(0 <= n < self.of.max_running for n in slots.values())
        stayed = slots.keys() & self.slot.keys() - {*step.joined}
        assert all(slots[name] == self.slot[name] for name in stayed), "a request keeps its slot"
        self.slot = slots
        assert self.of.slots.used == len(self.of.running)

    @invariant()
    def nobody_is_lost(self) -> None:
        if hasattr(self, "of"):
            present = [*self.of.running, *self.of.waiting]
            assert len({*present}) == len(present)
            assert {*present} == {job for job in self.jobs if not job.end}
            self.between()

    def teardown(self) -> None:
        if not hasattr(self, "of"):
            return
        last = self.steps + MOST_STEPS
        while not self.of.idle:
            assert self.steps < last, "it does not end"
            self.step()
        for job in self.jobs:
            whole = list(range(len(job.prompt), len(job.prompt) + job.limit))
            assert job.output == whole[: len(job.output)], "after an eviction an answer goes on where it was"
            assert job.end is End.CANCELLED or (job.end is End.DONE and job.output == whole)
        assert self.of.slots.used == 0
        self.at_the_end()


class Ours(Rules):
    """The labs' scheduler, over an engine that counts."""

    policy: Policy

    def make(self, reuse: bool, chunked: bool, batch: int, blocks: int, tokens: int) -> None:
        engine = CountingEngine(tokens, finishes=True)
        features = Features(chunked, tokens, kv_cache_reuse=reuse)
        self.of = engine.scheduler = Scheduler(
            engine, KVBudget(blocks, SIZE), self.policy, batch, self.static, features, order(self.word)
        )
        self.tokens = tokens
        self.written = Written(blocks + batch, SIZE) if reuse else None
        if self.written:
            self.of.memory.blocks = self.written

    def can_be_served(self, job: Request) -> bool:
        evictable = self.of.policy is Policy.MAX_UTILIZATION and job.resumable
        longest = len(job.prompt) + (job.limit - 1 if evictable else 0)
        return super().can_be_served(job) and (self.of.features.chunked_context or longest <= self.tokens)

    def as_it_is(self) -> object:
        notes = [(one, one.cached) for one in (*self.of.running, *self.of.waiting)]
        return super().as_it_is(), deepcopy(vars(self.of.order)), notes, self.of.blocks_used

    def after(self, plan: StepPlan, step: Step, running: list[Request]) -> None:
        assert (plan.batch, names(plan.admitted), names(plan.victims)) == (step.requests, step.joined, step.evicted)
        assert (plan.tokens, names(plan.waiting)) == (step.tokens, [*step.waiting])
        assert not plan.waiting or plan.because == (step.why, step.because)
        assert not step.joined or not self.static or not running, "a static batch takes newcomers when empty"
        if self.written:
            assert self.written.held == self.written.distinct() <= self.of.kv.blocks + self.of.max_running
            for job in self.of.running:
                known = job.cached if job.output else job.found  # what it found must be there when it joins
                assert self.written.stands(job, job.prompt + job.output, known)

    def between(self) -> None:
        overtaken = self.of.order.overtaken
        assert overtaken.keys() <= {*self.of.running, *self.of.waiting}, "nothing is kept of a request that has ended"
        assert all(times <= self._patience(job) for job, times in overtaken.items())
        assert self.of.blocks_used == self._claimed() or self.written

    def _claimed(self) -> int:
        """Blocks that nobody shares: of who runs, and of who was dropped and is in memory for one more step."""
        claimed = sum(-(-job.tokens // SIZE) for job in self.of.memory.leaving)
        for job in self.of.running:
            whole = len(job.prompt) + job.limit
            grows = self.of.policy is Policy.MAX_UTILIZATION and job.resumable
            claimed += -(-(min(job.tokens + 1, whole) if grows else whole) // SIZE)
        return claimed

    def _patience(self, job: Request) -> float:
        """How often the order lets later requests go before this one."""
        kind = type(self.of.order)
        if kind is Priority:
            return (job.priority - 1) * Priority.PATIENCE
        return {ShortestFirst: ShortestFirst.PATIENCE, Fair: float("inf")}.get(kind, 0)

    def at_the_end(self) -> None:
        assert self.of.blocks_used == 0
        assert not self.written or self.written.held == 0, "somebody still holds a block"
        if isinstance(fair := self.of.order, Fair) and all(job.end is End.DONE for job in self.jobs):
            paid: dict[str | None, int] = {}
            for job in self.jobs:  # what an eviction makes the engine compute again is charged to nobody
                price = Fair.PROMPT * len(job.prompt) + Fair.ANSWER * job.limit
                paid[job.tenant] = paid.get(job.tenant, 0) + price
            assert all(fair.served[tenant] >= price for tenant, price in paid.items())


class Vllms(Rules):
    """vLLM's scheduler, as `labctl predict` has it: it decides at the step itself, and preempts by its own rules."""

    def make(self, reuse: bool, chunked: bool, batch: int, blocks: int, tokens: int) -> None:
        from benchmarks.counting_vllm import make_counted_vllm

        self.tokens = max(tokens, batch) if chunked else LONGEST  # vLLM refuses fewer
        words = {
            "gpt_model_type": "V1" if self.static else "inflight_batching",
            "scheduling": self.word,
            "max_num_sequences": str(batch),
            "max_num_tokens": str(self.tokens),
            "max_tokens_in_paged_kv_cache": str(blocks * SIZE),
            "block_size": str(SIZE),
            "enable_chunked_context": str(chunked).lower(),
            "enable_kv_cache_reuse": str(reuse).lower(),
        }
        self.of = make_counted_vllm(lambda name: words.get(name, ""), context=LONGEST, vocabulary=LONGEST)
        self.reuse = reuse
        self.known: dict[Request, int] = {}  # tokens of who runs whose keys and values are in blocks
        self.batch: set[Request] = set()  # who has joined since the batch was empty
        self.came: list[Request] = []  # who waited then

    def prepare(self, job: Request) -> None:
        whole = list(range(len(job.prompt), len(job.prompt) + job.limit))
        job.sampling = KnownAnswer(whole, word=False, resumable=True)  # type: ignore[assignment]

    @property
    def used(self) -> int:
        """Blocks by vLLM's own count."""
        pool = self.of._scheduler.kv_cache_manager.block_pool
        return int(pool.num_gpu_blocks - 1 - pool.get_num_free_blocks())

    def after(self, plan: StepPlan, step: Step, running: list[Request]) -> None:
        named = {job.name: job for job in self.jobs}
        admitted, waiting, victims = (
            [named[name] for name in some] for some in (step.joined, step.waiting, step.evicted)
        )
        for job in victims:
            del self.known[job]
        for job, count, found in zip(step.requests, step.tokens, step.found, strict=True):
            self.known[job] = (found if job in admitted else self.known[job]) + count
        assert {*admitted} == {*step.requests} - {*running}
        if admitted and waiting:
            assert max(map(self._turn, admitted)) < min(map(self._turn, waiting)), "nobody is overtaken"
        if self.static:
            if not running:
                self.batch, self.came = (set(), [*admitted, *waiting])
            self.batch |= {*admitted}
            assert self.batch <= {*self.came[: self.of.max_running]}, "a static batch takes newcomers when empty"
        self._shares_what_is_equal(step)

    def _turn(self, job: Request) -> tuple[int, int]:
        return job.priority if self.word == "priority" else 0, job.came

    def _shares_what_is_equal(self, step: Step) -> None:
        """A block in two tables is full, and stands for the same beginning."""
        stands: dict[int, list[int]] = {}
        for job, table in zip(step.requests, step.block_ids, strict=True):
            assert len(table) == -(-self.known[job] // SIZE)
            for place, block in enumerate(table):
                beginning = (job.prompt + job.output)[: min((place + 1) * SIZE, self.known[job])]
                assert stands.setdefault(block, beginning) == beginning
                assert self.reuse or stands[block] is beginning, "nobody shares a block"
        assert len(stands) <= (step.kv_blocks_used or 0)

    def between(self) -> None:
        blocks = sum(-(-self.known[job] // SIZE) for job in self.of.running)
        assert self.used == blocks or (self.reuse and self.used < blocks)

    def at_the_end(self) -> None:
        assert self.used == 0


def keeps_the_rules(machine: type[Rules], examples: int, **case: Any) -> None:
    """Run a machine of that kind by chance, for one case: the words and settings that it has as attributes."""
    run_state_machine_as_test(type("Machine", (machine,), case), settings=settings(SETTINGS, max_examples=examples))
