"""vLLM's scheduler, with an account of each decision, and of which step a result is of."""

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from labsched.plan import Because
from labserve.vllm.gate import Gate


class Table(list[int]):
    """The ids of a request's KV blocks: most steps leave it as it is, so that it is written out once."""

    @cached_property
    def text(self) -> str:
        """It as JSON."""
        return f"[{','.join(map(str, self))}]"


@dataclass(slots=True)
class Decision:
    """One call of vLLM's `Scheduler.schedule`, by vLLM's ids. Lists of numbers are in the order of `batch`.

    Its source is `SchedulerOutput` (vllm/v1/core/sched/output.py), and the block tables as they stood after it.
    """

    waiting: list[str]  # in the order in which they will be considered
    preempted: list[str]
    because: Because
    blocks_used: int
    batch: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # num_scheduled_tokens
    phase: str = ""  # a letter for each: p prefill (also of a preempted request's own output), d decode
    drafted: list[int] = field(default_factory=list)  # of the tokens
    block_ids: list[Table] = field(default_factory=list)
    admitted: list[str] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)  # of each admitted request: tokens found in the prefix cache
    began: float = 0.0  # monotonic seconds at which it was made
    mask_s: float | None = None  # that the masks of the step took to make; None where no request has one


def watched(kind: Any, gate: Gate | None = None) -> Any:
    """A subclass of a scheduler of vLLM, for `EngineArgs.scheduler_cls`, which tells what was decided.

    Args:
        gate: of static batching.
    """

    class Watched(kind):  # type: ignore[misc]
        """`decided`: the steps that are in flight, oldest first, with vLLM's own word for each (`SchedulerOutput`).

        `landed`: the step whose result has come since it was last taken. While `grounded` no step is decided, and
        vLLM only waits for those in flight: it asks `has_requests` before it decides.
        """

        waiting: Any  # vLLM's `RequestQueue`

        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.decided: deque[tuple[Any, Decision]] = deque()
            self.landed: Decision | None = None
            self.grounded = False
            self.tables: dict[str, Table] = {}  # of the last step

        def has_requests(self) -> bool:
            return not self.grounded and bool(super().has_requests())

        def schedule(self, *args: Any, **named: Any) -> Any:
            began = time.monotonic()
            before = {request.request_id: request.num_output_placeholders for request in self.running}
            output = super().schedule(*args, **named) if gate is None else self._through(gate, *args, **named)
            found = decision(self, before, output, self.tables)
            found.began, self.tables = began, dict(zip(found.batch, found.block_ids, strict=True))
            if gate and found.waiting and gate.closed(self.requests[found.waiting[0]]):
                full = len(self.running) >= self.max_num_running_reqs
                found.because = Because("no slot" if full else "batch closed")
            self.decided.append((output, found))
            return output

        def _through(self, gate: Gate, *args: Any, **named: Any) -> Any:
            """vLLM decides about those alone that the gate admits."""
            everybody = self.waiting
            admitted = gate.admit([*everybody], self.requests)
            everybody.remove_requests(admitted)
            self.waiting = type(everybody)()
            for request in admitted:
                self.waiting.add_request(request)
            try:
                return super().schedule(*args, **named)
            finally:
                for request in reversed([*self.waiting]):  # found no memory, or were preempted
                    everybody.prepend_request(request)
                self.waiting = everybody

        def get_grammar_bitmask(self, output: Any, *args: Any, **named: Any) -> Any:
            began = time.monotonic()
            masks = super().get_grammar_bitmask(output, *args, **named)
            if masks is not None:
                next(found for of, found in self.decided if of is output).mask_s = time.monotonic() - began
            return masks

        def update_from_output(self, output: Any, *args: Any, **named: Any) -> Any:
            of, self.landed = self.decided.popleft()
            assert of is output, "vLLM computes its steps in the order in which it decides them"
            return super().update_from_output(output, *args, **named)

    return Watched


def decision(
    scheduler: Any, before: Mapping[str, int], output: Any, tables: Mapping[str, Table] = MappingProxyType({})
) -> Decision:
    """What `scheduler` has just decided; `before` was running, each with its tokens in flight.

    Args:
        tables: of the step before. Those to which nothing was added are the same now.
    """
    scheduled, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    cached = output.scheduled_cached_reqs
    same = {id for id, new in zip(cached.req_ids, cached.new_block_ids, strict=True) if new is None}
    pool, table_of = scheduler.kv_cache_manager.block_pool, scheduler.kv_cache_manager.get_block_ids
    blocks = pool.num_gpu_blocks - 1  # without the null block
    gone, waiting = output.preempted_req_ids or (), queue(scheduler)
    found = Decision(
        waiting=[request.request_id for request in waiting],
        preempted=[request.request_id for request in waiting if request.request_id in gone] if gone else [],
        because=why(scheduler, waiting, sum(scheduled.values()), bool(gone), blocks),
        blocks_used=blocks - pool.get_num_free_blocks(),
    )
    phase = []
    for request in scheduler.running:
        id = request.request_id
        if not (tokens := scheduled.get(id)):
            continue
        computed = request.num_computed_tokens - tokens  # `schedule` has counted the step's tokens as computed already
        found.batch.append(id)
        found.tokens.append(tokens)
        phase.append(_phase(request, computed, before.get(id, 0)))
        found.drafted.append(len(drafts[id]) if id in drafts else 0)
        found.block_ids.append(tables[id] if id in same and id in tables else Table(table_of(id)[0]))
        if id not in before:
            found.admitted.append(id)
            found.cached.append(computed)
    found.phase = "".join(phase)
    return found


def queue(scheduler: Any) -> list[Any]:
    """The waiting requests in vLLM's order."""
    return [*scheduler.waiting]


def why(scheduler: Any, waiting: Sequence[Any], tokens: int, preempted: bool, blocks: int) -> Because:
    """Why the first waiting request was not admitted: the conditions of `Scheduler.schedule`, in its order.

    Args:
        tokens: computed in this step.
        preempted: whether the step preempted: then vLLM admits nothing.
        blocks: of the cache.
    """
    if not waiting:
        return Because()
    first, used = waiting[0], blocks - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    need = -(-first.num_tokens // scheduler.block_size) - _shared(scheduler, first)
    if preempted:
        return Because("no KV block", need, used, 0, blocks)
    if len(scheduler.running) >= scheduler.max_num_running_reqs:
        return Because("no slot")
    room = scheduler.max_num_scheduled_tokens - tokens
    if room <= 0 or (not scheduler.scheduler_config.enable_chunked_prefill and first.num_tokens > room):
        return Because("no tokens", tokens=first.num_tokens, room=room)
    return Because("no KV block", need, used, 0, blocks)


def _shared(scheduler: Any, request: Any) -> int:
    """Blocks of a waiting request that running requests hold already."""
    if not scheduler.cache_config.enable_prefix_caching:
        return 0
    found = scheduler.kv_cache_manager.get_computed_blocks(request)[0]
    return sum(block.ref_cnt > 0 for block in found.blocks[0])


def _phase(request: Any, computed: int, in_flight: int) -> str:
    """Of a request that had `computed` tokens computed, or in a step in flight, and so many new ones there."""
    made = request.num_output_tokens + in_flight
    return "d" if made and request.num_tokens + in_flight - computed <= 1 else "p"
