"""Whatever is asked, in whatever order: what holds of every step of the scheduler, under each policy and each order.

A machine of Hypothesis submits, cancels and steps at random.
"""

from __future__ import annotations

from copy import deepcopy

import pytest
from counting_engine import InPieces
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
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.order import ORDERS, Fair, Priority, ShortestFirst, order
from labsched.plan import Plan
from labsched.policy import Policy
from labsched.request import End, Request
from labsched.sampling_options import Sampling
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


# To shrink what breaks a rule takes minutes: add Phase.shrink where an example is too long to read.
SETTINGS = settings(
    max_examples=25,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Written(Blocks):
    """Blocks with what stands in them; nothing may be written to one that is not what every holder has there."""

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
            assert all((one.prompt + one.output)[n : n + 1] == tokens[n : n + 1] for one in holders)
            self.slots.setdefault(block, {})[n % self.size] = tokens[n]

    def stands(self, owner: object, tokens: list[int], count: int) -> bool:
        blocks = self._tables[owner].blocks
        return all(self.slots.get(blocks[n // self.size], {}).get(n % self.size) == tokens[n] for n in range(count))

    def distinct(self) -> int:
        return len({block for table in self._tables.values() for block in table.blocks})


class Scheduling(RuleBasedStateMachine):
    """Requests come, leave and are computed; after each step its rules are held against what the step says it did."""

    policy: Policy
    static: bool
    word: str
    of: Scheduler

    @initialize(
        reuse=some.booleans(),
        chunked=some.sampled_from([True, True, False]),
        batch=some.sampled_from([4, 3, 2, 1]),
        blocks=some.integers(7, 14),
        tokens=some.sampled_from([16, 7, 64, 4]),
        asked=some.lists(ASKED, min_size=3, max_size=6),
    )
    def begin(self, reuse: bool, chunked: bool, batch: int, blocks: int, tokens: int, asked: list[Asked]) -> None:
        engine = InPieces(step_tokens=tokens)
        features = Features(chunked, tokens, kv_cache_reuse=reuse)
        self.of = engine.scheduler = Scheduler(
            engine, KVBudget(blocks, SIZE), self.policy, batch, self.static, features, order(self.word)
        )
        self.written = Written(blocks + batch, SIZE) if reuse else None
        if self.written:
            self.of.memory.blocks = self.written
        self.jobs: list[Request] = []
        self.slot: dict[Request, int] = {}
        self.steps = 0
        self.submit_some(asked)

    @rule(asked=some.lists(ASKED, min_size=1, max_size=4))
    def submit_some(self, asked: list[Asked]) -> None:
        for prompt, limit, tenant, priority, kind in asked:
            self.submit(Request(str(len(self.jobs)), prompt, limit, kind, tenant=tenant, priority=priority))

    def submit(self, job: Request) -> None:
        evictable = self.of.policy is Policy.MAX_UTILIZATION and job.resumable
        longest = len(job.prompt) + (job.limit - 1 if evictable else 0)
        blocks = -(-(len(job.prompt) + job.limit) // SIZE)
        whole = self.of.features.chunked_context or longest <= self.of.engine.step_tokens
        try:
            self.of.submit(job)
        except BadInput:
            assert blocks > self.of.kv.blocks or not whole, "it could have been served"
            return
        assert blocks <= self.of.kv.blocks and whole, "it can never be served"
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
        before, running, leaving = self._as_it_is(), list(self.of.running), len(self.of.memory.leaving)
        outputs = {job: len(job.output) for job in self.jobs}
        plan = self.of.plan()
        assert self._as_it_is() == before, "a plan changes nothing"
        self._foretells(plan, step := self.of.step())
        self.steps += 1
        self._keeps_within_its_limits(step, leaving)
        assert not step.admitted or not self.of.static or not running, "a static batch takes newcomers when empty"
        assert not step.admitted or not step.preempted, "who is preempted is not admitted in the same step"
        for job in step.preempted:
            assert self.of.policy is Policy.MAX_UTILIZATION and job.resumable and job in running
        for job, letter, count in zip(step.batch, step.phase, step.computed, strict=True):
            made = len(job.output) - outputs[job]
            assert made <= 1 and (letter == "p" or (made, count) == (1, 1)), "a request that decodes gets its token"
            if letter == "p" and not self.of.features.chunked_context:
                assert made == 1, "without chunks a prompt is computed in one step"
        assert {job for job, _ in step.produced} == {job for job in self.jobs if len(job.output) > outputs[job]}
        self._keeps_slots(step)

    def _claimed(self) -> int:
        """Blocks that nobody shares: of who runs, and of who was dropped and is in memory for one more step."""
        claimed = sum(-(-job.tokens // SIZE) for job in self.of.memory.leaving)
        for job in self.of.running:
            whole = len(job.prompt) + job.limit
            grows = self.of.policy is Policy.MAX_UTILIZATION and job.resumable
            claimed += -(-(min(job.tokens + 1, whole) if grows else whole) // SIZE)
        return claimed

    def _foretells(self, plan: Plan, step: Step) -> None:
        assert (plan.batch, plan.admitted, plan.victims) == (step.batch, step.admitted, step.preempted)
        assert (plan.tokens, plan.waiting, plan.because) == (step.computed, step.waiting, step.plan.because)
        assert bool(plan.because.why) == bool(plan.waiting or plan.victims)
        assert {*plan.batch, *plan.waiting} == {job for job in self.jobs if not job.end or job in step.ended}

    def _keeps_within_its_limits(self, step: Step, leaving: int) -> None:
        """``leaving``: requests whose memory is free a step later; the spare blocks are for that."""
        assert len(step.batch) <= self.of.max_running
        assert sum(step.computed) <= self.of.engine.step_tokens
        assert step.blocks <= self.of.kv.blocks + leaving
        if self.written:
            assert self.written.held == self.written.distinct() <= self.of.kv.blocks + self.of.max_running
            for job in self.of.running:
                known = job.cached if job.output else job.found  # what it found must be there when it joins
                assert self.written.stands(job, job.prompt + job.output, known)

    def _keeps_slots(self, step: Step) -> None:
        slots = dict(zip(step.batch, step.slots, strict=True))
        assert len({*slots.values()}) == len(slots) and all(0 <= n < self.of.max_running for n in slots.values())
        stayed = slots.keys() & self.slot.keys() - {*step.admitted}
        assert all(slots[job] == self.slot[job] for job in stayed), "a request keeps its slot"
        self.slot = slots
        assert self.of.slots.used == len(self.of.running)

    def _as_it_is(self) -> object:
        notes = [(one, one.cached) for one in (*self.of.running, *self.of.waiting)]
        return list(self.of.running), list(self.of.waiting), deepcopy(vars(self.of.order)), notes, self.of.blocks_used

    @invariant()
    def nobody_is_lost(self) -> None:
        if hasattr(self, "of"):
            present = [*self.of.running, *self.of.waiting]
            assert len({*present}) == len(present)
            assert {*present} == {job for job in self.jobs if not job.end}
            overtaken = self.of.order.overtaken
            assert overtaken.keys() <= {*present}, "nothing is kept of a request that has ended"
            assert all(times <= self._patience(job) for job, times in overtaken.items())
            assert self.of.blocks_used == self._claimed() or self.written

    def _patience(self, job: Request) -> float:
        """How often the order lets later requests go before this one."""
        kind = type(self.of.order)
        if kind is Priority:
            return (job.priority - 1) * Priority.PATIENCE
        return {ShortestFirst: ShortestFirst.PATIENCE, Fair: float("inf")}.get(kind, 0)

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
        assert self.of.blocks_used == 0 and self.of.slots.used == 0
        assert not self.written or self.written.held == 0, "somebody still holds a block"
        if isinstance(fair := self.of.order, Fair) and all(job.end is End.DONE for job in self.jobs):
            paid: dict[str, int] = {}
            for job in self.jobs:  # what an eviction makes the engine compute again is charged to nobody
                price = Fair.PROMPT * len(job.prompt) + Fair.ANSWER * job.limit
                paid[job.tenant] = paid.get(job.tenant, 0) + price
            assert all(fair.served[tenant] >= price for tenant, price in paid.items())


@pytest.mark.parametrize("word", ORDERS)
@pytest.mark.parametrize(
    ("policy", "static"),
    [(Policy.MAX_UTILIZATION, False), (Policy.GUARANTEED_NO_EVICT, False), (Policy.GUARANTEED_NO_EVICT, True)],
)
def test_every_step_keeps_the_rules_whatever_comes(policy: Policy, static: bool, word: str) -> None:
    machine = type("Machine", (Scheduling,), {"policy": policy, "static": static, "word": word})
    run_state_machine_as_test(machine, settings=SETTINGS)
