"""An engine behind the in-flight scheduler that only counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class CountingEngine:
    """Each sequence gets a token at every step: the number of tokens that it has."""

    step_tokens: int = 10_000
    cache_bytes: int = 0
    live: dict[int, list[int]] = field(default_factory=dict)
    new: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    count: int = 0
    largest: int = 0

    def add(self, ids: list[int], limit: int, sampling: object) -> int:
        self.count += 1
        self.live[self.count], self.left[self.count], self.new[self.count] = list(ids), limit, []
        return self.count

    def step(self) -> None:
        running = [handle for handle in self.live if self.left[handle]]
        self.largest = max(self.largest, len(running))
        for handle in running:
            self.new[handle] = [len(self.live[handle])]
            self.live[handle] += self.new[handle]
            self.left[handle] -= 1

    def read(self, handle: int) -> tuple[list[int], bool]:
        tokens, self.new[handle] = self.new[handle], []
        over = not self.left[handle]
        if over:
            del self.live[handle]
        return tokens, over

    def drop(self, handle: int) -> None:
        self.live.pop(handle, None)

    def must_finish(self, handle: int) -> bool:
        return False

    def drafts(self, ids: Sequence[int], left: int) -> int:
        return 0


@dataclass
class InPieces(CountingEngine):
    """A token for each request whose prompt is computed; one that is dropped before goes on until it is.

    A request's token is the number of tokens that it has.
    """

    scheduler: Any = None

    def step(self) -> None:
        self.largest = max(self.largest, len(self.scheduler.running))
        for job in self.scheduler.running:
            if job.left == 0 and self.left[job.handle]:
                self.new[job.handle] = [job.tokens]
                self.left[job.handle] -= 1

    def must_finish(self, handle: int) -> bool:
        (job,) = [one for one in (*self.scheduler.running, *self.scheduler.memory.leaving) if one.handle == handle]
        return bool(job.left > 0 and not job.decodes)

    def read(self, handle: int) -> tuple[list[int], bool]:
        tokens, self.new[handle] = self.new[handle], []
        return tokens, not self.left[handle]
