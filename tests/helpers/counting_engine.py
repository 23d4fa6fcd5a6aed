"""An engine behind the in-flight scheduler that only counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class CountingEngine:
    """Each sequence gets a token at every step: the number of tokens that it has."""

    step_tokens: int = 10_000
    cache_bytes: int = 0
    live: dict[int, list[int]] = field(default_factory=dict)
    new: dict[int, list[int]] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    count: int = 0

    def add(self, ids: list[int], limit: int, sampling: object) -> int:
        self.count += 1
        self.live[self.count], self.left[self.count], self.new[self.count] = list(ids), limit, []
        return self.count

    def step(self) -> None:
        for handle in [handle for handle in self.live if self.left[handle]]:
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
