"""vLLM's scheduler, with an account of each decision."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labserve.inflight.plan import Because


@dataclass(slots=True)
class Decision:
    """One call of vLLM's `Scheduler.schedule`, by vLLM's ids. Lists of numbers are in the order of `batch`.

    Its source is `SchedulerOutput` (vllm/v1/core/sched/output.py), and the block tables as they stood after it.
    """

    batch: list[str]
    tokens: list[int]  # num_scheduled_tokens
    phase: str  # a letter for each: p prefill (also of a preempted request's own output), d decode
    drafted: list[int]  # of the tokens
    block_ids: list[list[int]]
    admitted: list[str]
    cached: list[int]  # of each admitted request: tokens found in the prefix cache
    preempted: list[str]
    waiting: list[str]  # in the order in which they will be considered
    because: Because
    blocks_used: int


def watched(kind: Any) -> Any:
    """A subclass of a scheduler of vLLM, for `EngineArgs.scheduler_cls`; its `decision` is the last one.

    `mask_s`: seconds that the masks of that step took to make; None where no request has one.
    """

    class Watched(kind):  # type: ignore[misc]
        decision: "Decision | None" = None
        mask_s: "float | None" = None

        def get_grammar_bitmask(self, *args: Any, **named: Any) -> Any:
            began = time.monotonic()
            masks = super().get_grammar_bitmask(*args, **named)
            self.mask_s = None if masks is None else time.monotonic() - began
            return masks

        def schedule(self, *args: Any, **named: Any) -> Any:
            before = [request.request_id for request in self.running]
            output = super().schedule(*args, **named)
            self.decision = decision(self, before, output)
            return output

    return Watched


def decision(scheduler: Any, before: Sequence[str], output: Any) -> Decision:
    """What `scheduler` has just decided; `before` was running."""
    scheduled = output.num_scheduled_tokens
    batch = [request for request in scheduler.running if scheduled.get(request.request_id)]
    # `schedule` has counted the step's tokens as computed already.
    computed = {request.request_id: request.num_computed_tokens - scheduled[request.request_id] for request in batch}
    admitted = [request.request_id for request in batch if request.request_id not in before]
    pool = scheduler.kv_cache_manager.block_pool
    blocks = pool.num_gpu_blocks - 1  # without the null block
    gone = output.preempted_req_ids or ()
    waiting = queue(scheduler)
    return Decision(
        batch=[request.request_id for request in batch],
        tokens=[scheduled[request.request_id] for request in batch],
        phase="".join(_phase(request, computed[request.request_id]) for request in batch),
        drafted=[len(output.scheduled_spec_decode_tokens.get(request.request_id, ())) for request in batch],
        block_ids=[list(scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]) for request in batch],
        admitted=admitted,
        cached=[computed[id] for id in admitted],
        preempted=[request.request_id for request in waiting if request.request_id in gone],
        waiting=[request.request_id for request in waiting],
        because=why(scheduler, waiting, sum(scheduled.values()), bool(gone), blocks),
        blocks_used=blocks - pool.get_num_free_blocks(),
    )


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


def _phase(request: Any, computed: int) -> str:
    return "d" if request.num_output_tokens and request.num_tokens - computed <= 1 else "p"
