"""The account of one step that has been computed."""

from dataclasses import dataclass, field
from typing import Any

from labsched.plan import StepPlan
from labsched.request import Request


@dataclass(slots=True)
class Step:
    """The result of one step, by its `plan` (vLLM: `ModelRunnerOutput`, vllm/v1/outputs.py).

    Lists of numbers are in the order of `batch`. A request that the engine refused is in `ended`, not in `batch`.
    """

    plan: StepPlan
    began: float  # seconds of time.monotonic()
    batch: list[Request]
    phase: str  # a letter for each request: p prefill, d decode
    computed: list[int]  # tokens; a prompt may go in pieces
    drafted: list[int]  # of the computed ones
    prefill: int  # requests without an output token before the step
    admitted: list[Request]
    blocks: int  # of the KV cache that were occupied or promised while it was computed
    claims: list[int]  # blocks of each request
    slots: list[int]
    cached: list[int]  # tokens that an admitted request found in the cache
    ended: list[Request]
    accepted: list[int] = field(default_factory=list)  # of the drafted ones
    produced: list[tuple[Request, list[int]]] = field(default_factory=list)  # the new tokens
    engine_s: float = 0.0  # seconds that the engine computed
    mask_s: float | None = None  # of these, for the masks of structured outputs; None: no request has one
    paced_s: float | None = None  # seconds that the step should take by the model of a GPU (pace.py)
    ahead_s: float = 0.0  # seconds before it began that it was decided, while the engine computed the one before
    in_vain: int = 0  # requests that had ended by then: it was decided before that was known
    block_ids: list[Any] = field(default_factory=list)  # of each request, where the engine has a block table

    @property
    def preempted(self) -> list[Request]:
        return self.plan.victims

    @property
    def names(self) -> list[str]:
        """The step log's names of the batch."""
        return [request.name for request in self.batch]

    @property
    def made(self) -> list[int]:
        """How many tokens are new, of each request."""
        produced = {request: len(tokens) for request, tokens in self.produced}
        return [produced.get(request, 0) for request in self.batch]

    def fields(self) -> dict[str, Any]:
        """The fields of its line in the step log that follow from the step alone (docs/develop/step-log.md)."""
        return {
            "rows": self.slots,
            "phase": self.phase,
            "tokens": self.computed,
            "made": self.made,
            "blocks": self.claims,
            "joined": [request.name for request in self.admitted],
            "evicted": [request.name for request in self.preempted],
            **self.plan.queue_fields(),
            "kv_blocks_used": self.blocks,
        }

    @property
    def waiting(self) -> list[Request]:
        """The requests that waited while it was computed, in the order in which they will be considered."""
        return self.plan.waiting
