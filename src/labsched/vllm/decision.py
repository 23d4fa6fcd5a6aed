"""The decision of one call of vLLM's `Scheduler.schedule`, taken from its `SchedulerOutput` at little cost."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from labsched.plan import Because
from labsched.step import NOT_RECORDED

NOT_READY = "not ready"
QUEUES = ("kv_holding_waiting", "skipped_waiting", "waiting")  # requests that hold KV blocks; that were passed over


@dataclass(slots=True)
class Decision:
    """One step as vLLM decided it, by vLLM's ids (`SchedulerOutput`, vllm/v1/core/sched/output.py).

    The numbers of tokens are a copy, because vLLM's runner may change its own. `sequences` are lists of ids, of the
    tokens computed before the step, and of the output tokens so far, with those in flight.
    """

    tokens: dict[str, int]  # num_scheduled_tokens, in the order of `running`
    sequences: list[tuple[Sequence[str], Sequence[int], Sequence[int]]]
    admitted: dict[str, int]  # tokens of each found in the prefix cache
    drafted: dict[str, int]
    waiting: list[str]  # in the order in which they will be considered, as many as were asked for
    queue: int  # how many wait
    preempted: list[str]
    because: Because
    blocks_used: int
    began: float  # monotonic seconds at which it was made
    mask_s: float | None = None  # to make the masks of the step; None if no request has one
    tables: Mapping[str, Any] = field(default_factory=dict)  # the KV blocks of each, where they are wanted
    whys: list[str] = field(default_factory=list)  # why each of `waiting` waits; []: all for the reason of `because`

    @property
    def batch(self) -> list[str]:
        return [*self.tokens]

    def phase(self, prompts: Mapping[str, int]) -> str:
        """A letter for each request of the batch: p prefill, also of a preempted request's own output; d decode.

        Args:
            prompts: the tokens of each prompt.
        """
        length = prompts.get
        letters = [
            "d" if made and length(id, 0) + made - computed <= 1 else "p"
            for ids, *counts in self.sequences
            for id, computed, made in zip(ids, *counts, strict=True)
        ]
        ids = [id for ids, *_ in self.sequences for id in ids]
        if ids != [*self.tokens]:
            letter_of = dict(zip(ids, letters, strict=True))
            letters = [letter_of[id] for id in self.tokens]
        return "".join(letters)


def shared_blocks(scheduler: Any, request: Any) -> int:
    """Blocks of a waiting request that running requests hold already. Nothing is counted or changed by asking."""
    groups = scheduler.kv_cache_config.kv_cache_groups
    if not scheduler.cache_config.enable_prefix_caching or len(groups) != 1:
        return 0
    find = scheduler.kv_cache_manager.coordinator.find_longest_cache_hit
    found, *_ = find(request.block_hashes, request.num_tokens - 1)
    return sum(block.ref_cnt > 0 for block in found[0])


Shared = Callable[[Any, Any], int]


def decision(
    scheduler: Any, output: Any, began: float, most_waiting: int | None = None, shared: Shared = shared_blocks
) -> Decision:
    """The decision of `scheduler` in `output`, a call that began at `began` (monotonic seconds).

    Args:
        most_waiting: names of waiting requests at most; None: all.
        shared: how many blocks of a request others hold, where that matters; one that remembers costs less.
    """
    cached = output.scheduled_cached_reqs
    resumed = _resumed(cached)
    admitted = {request.req_id: request.num_computed_tokens for request in output.scheduled_new_reqs}
    sequences: list[tuple[Sequence[str], Sequence[int], Sequence[int]]] = [
        (cached.req_ids, cached.num_computed_tokens, cached.num_output_tokens)  # new lists in each step
    ]
    if admitted:  # a preempted request counts as a new one for vLLM's second model runner
        made = [scheduler.requests[id].num_output_tokens for id in admitted]
        sequences.append(([*admitted], [*admitted.values()], made))
    if resumed:
        admitted |= {id: n for id, n in zip(cached.req_ids, cached.num_computed_tokens, strict=True) if id in resumed}
    gone = output.preempted_req_ids or ()
    pool = scheduler.kv_cache_manager.block_pool
    blocks = pool.num_gpu_blocks - 1  # without the null block
    waiting = [*islice(queue(scheduler), most_waiting)]

    def why(request: Any) -> Because:
        return why_not_admitted(scheduler, request, output.total_num_scheduled_tokens, bool(gone), blocks, shared)

    because = why(waiting[0] if waiting else None)
    whys: list[str] = []
    if because.why == NOT_READY:  # vLLM passes over such a request: those behind it wait for something else
        ready = why(next((request for request in waiting if not _is_unready(request)), None)).why
        whys = [NOT_READY if _is_unready(request) else ready or NOT_RECORDED for request in waiting]
    return Decision(
        tokens=dict(output.num_scheduled_tokens),
        sequences=sequences,
        admitted=admitted,
        drafted={id: len(ids) for id, ids in output.scheduled_spec_decode_tokens.items()},
        waiting=[request.request_id for request in waiting],
        queue=_length(scheduler),
        preempted=[request.request_id for request in queue(scheduler) if request.request_id in gone] if gone else [],
        because=because,
        blocks_used=blocks - pool.get_num_free_blocks(),
        began=began,
        whys=whys,
    )


def _resumed(cached: Any) -> Any:
    """The preempted requests that run again. vLLM before 0.12 has a flag for each request instead."""
    if (ids := getattr(cached, "resumed_req_ids", None)) is not None:
        return ids
    return {id for id, flag in zip(cached.req_ids, cached.resumed_from_preemption, strict=True) if flag}


def queue(scheduler: Any) -> Iterator[Any]:
    """The waiting requests in vLLM's order: first those of the queues that only some of its versions have."""
    for name in QUEUES:
        yield from getattr(scheduler, name, ())


def _length(scheduler: Any) -> int:
    return sum(len(getattr(scheduler, name, ())) for name in QUEUES)


def _is_unready(request: Any) -> bool:
    """Whether it waits for a grammar, or for keys and values from elsewhere."""
    return getattr(request.status, "name", "").startswith("WAITING_FOR")


def _is_paused(scheduler: Any) -> bool:
    """Whether vLLM was told to admit nothing, as while it gets other weights: then it looks at no condition."""
    return getattr(getattr(scheduler, "_pause_state", None), "name", "").startswith("PAUSED")


def why_not_admitted(
    scheduler: Any, first: Any, tokens: int, preempted: bool, blocks: int, shared: Shared = shared_blocks
) -> Because:
    """Why `first`, the first waiting request, was not admitted: the conditions of `Scheduler.schedule`, in its order.

    Args:
        first: None: no request waits.
        tokens: computed in this step.
        preempted: whether the step preempted: then vLLM admits nothing.
        blocks: of the cache.
    """
    if first is None or _is_paused(scheduler):
        return Because()
    if not preempted:
        most = getattr(scheduler, "max_num_active_reqs", None) or scheduler.max_num_running_reqs
        sessions = getattr(scheduler, "num_waiting_for_streaming_input", 0)  # they keep their slots
        if len(scheduler.running) + sessions >= most:
            return Because("no slot")
        room = scheduler.max_num_scheduled_tokens - tokens
        if room <= 0 or (not scheduler.scheduler_config.enable_chunked_prefill and first.num_tokens > room):
            return Because("no tokens", {"tokens": first.num_tokens, "room": room})
        if _is_unready(first):
            return Because(NOT_READY)
    manager = scheduler.kv_cache_manager
    need = -(-first.num_tokens // scheduler.block_size) - shared(scheduler, first)
    used = blocks - manager.block_pool.get_num_free_blocks()
    reserve = int(getattr(manager, "watermark_blocks", 0))
    if not preempted and need + used + reserve <= blocks:
        return Because()  # it would have fitted: vLLM had a reason that is not known here
    return Because("no KV block", {"need": need, "used": used, "reserve": reserve, "blocks": blocks})


@dataclass
class StepsInFlight:
    """The steps that were decided and whose results have not come, oldest first, with vLLM's own word for each."""

    steps: deque[tuple[Any, Decision]] = field(default_factory=deque)

    def add(self, output: Any, decided: Decision) -> None:
        self.steps.append((output, decided))

    def take(self, output: Any) -> Decision:
        """The step whose result has come: vLLM computes its steps in the order of its decisions.

        Raises LookupError: vLLM did not decide it here.
        """
        while self.steps:
            own_output, decided = self.steps.popleft()
            if own_output is output:
                return decided
        raise LookupError("a result of a step that was not decided here")

    def masked(self, output: Any, began: float) -> None:
        """The masks of a step are made since `began` (monotonic seconds)."""
        decided = next(decided for own_output, decided in self.steps if own_output is output)
        decided.mask_s = time.monotonic() - began
