"""The protocol behind which an engine stands: what the scheduler asks of it, and nothing of how it computes."""

from collections.abc import Sequence
from typing import Any, Protocol


class Engine(Protocol):
    """A compiled model with a paged KV cache that takes new sequences at any step.

    Its counterpart in vLLM V1 is the executor with its model runner (vllm/v1/worker/gpu_model_runner.py). A step
    computes at most `step_tokens` tokens: one for each sequence that decodes, and with the rest prompts, in the order
    of `add`. The cache has one spare block for each running sequence beyond the scheduler's own blocks, because the
    memory of a dropped sequence is free only after the next step.
    """

    step_tokens: int

    @property
    def cache_bytes(self) -> int:
        """Memory of the KV cache as allocated."""

    def add(self, ids: list[int], limit: int, sampling: Any) -> Any:
        """Begin a sequence: at most `limit` tokens after `ids`. Returns a handle."""

    def step(self) -> None:
        """Compute one step: for each sequence a token, or a piece of its prompt."""

    def read(self, handle: Any) -> tuple[list[int], bool]:
        """The new tokens of a sequence, and whether the engine has ended it. Raises if it gave the sequence up."""

    def drop(self, handle: Any) -> None:
        """Forget a sequence; its memory is free after the next step, or the one that ends what `must_finish` says."""

    def must_finish(self, handle: Any) -> bool:
        """Whether the engine computes the prompt of this sequence to its end, even if the sequence is dropped."""

    def drafts(self, ids: Sequence[int], left: int) -> int:
        """How many draft tokens it will check after `ids`, of a sequence that may have `left` more tokens."""
