"""A request as models that answer token by token have it. Engines take it without Triton too (labserve/alone.py)."""

from dataclasses import dataclass
from typing import Any

from labsched.request import Request


@dataclass(slots=True, eq=False)
class ServedRequest(Request):
    """A request of Triton's, as a scheduler with an engine takes it."""

    source: Any = None  # Triton's request
    streaming: bool = False
    scored: Any = None  # the source of its log probabilities (labserve/inflight/logprobs.py); None: it wants none
    cut: bool = False  # a response could not be sent: its answer has ended with an error. The writer's

    @property
    def finished(self) -> bool:
        """Whether it has ended."""
        return self.end is not None
