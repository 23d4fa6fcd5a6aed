"""An engine that counts in the place of one that computes: every token is there when its turn has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from labsched.scheduler import Scheduler


@dataclass(frozen=True)
class KnownAnswer:
    """The model's answer, given in advance in the place of :class:`Sampling`."""

    tokens: list[int]
    word: bool
    resumable: bool
    made: int = 0

    def after(self, made: int) -> KnownAnswer:
        return KnownAnswer(self.tokens, self.word, self.resumable, made)


@dataclass(eq=False, slots=True)
class CountingHandle:
    """A sequence in the engine. ``new``: its next token is there; ``began``: its prompt has been computed."""

    answer: KnownAnswer
    at: int
    new: bool = False
    began: bool = False


class CountingEngine:
    """An engine that computes nothing: a token is there when the scheduler has shared out all tokens before it.

    Args:
        step_tokens: at most so many tokens are computed in a step.
        finishes: prompts that were dropped are computed to their end, as OpenVINO does with prefix caching.

    Attributes:
        scheduler: whose requests it counts; its owner sets it.
    """

    cache_bytes = 0

    def __init__(self, step_tokens: int, finishes: bool = False) -> None:
        self.step_tokens = step_tokens
        self.finishes = finishes
        self.scheduler: Scheduler

    def add(self, ids: list[int], limit: int, sampling: Any) -> CountingHandle:
        if not isinstance(sampling, KnownAnswer):  # a token is how many there are before it
            sampling = KnownAnswer([*range(len(ids), len(ids) + limit)], word=False, resumable=True)
        return CountingHandle(sampling, sampling.made)

    def step(self) -> None:
        for request in self.scheduler.running:
            request.handle.new = request.left == 0
        for request in self.scheduler.memory.leaving:
            request.handle.began = request.handle.began or request.left <= 0

    def read(self, handle: CountingHandle) -> tuple[list[int], bool]:
        if not handle.new:
            return [], False
        token = handle.answer.tokens[handle.at]
        handle.at += 1
        handle.new, handle.began = False, True
        whole = handle.at == len(handle.answer.tokens)
        return [token], whole and not handle.answer.word  # the scheduler itself ends a request at its stop word

    def drop(self, handle: CountingHandle) -> None:
        handle.new = False

    def must_finish(self, handle: CountingHandle) -> bool:
        return self.finishes and not handle.began

    def drafts(self, ids: Sequence[int], left: int) -> int:
        return 0
