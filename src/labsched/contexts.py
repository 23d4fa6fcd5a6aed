"""How much of each request is in the KV cache, by the steps so far."""

from __future__ import annotations

from labsched.step import Step


class Contexts:
    """How many tokens of each request are in the KV cache, followed from step to step."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}

    def of(self, row: Step) -> int:
        """The tokens whose keys and values a step reads or writes, over its batch."""
        return sum(self.each(row))

    def each(self, row: Step) -> list[int]:
        """The same for each request of the batch."""
        for name in row.evicted:
            self._tokens.pop(name, None)
        contexts = []
        for name, tokens, found in zip(row.ids, row.tokens, row.found, strict=True):
            before = found if name in row.joined else self._tokens.get(name, 0)
            self._tokens[name] = before + tokens
            contexts.append(before + tokens)
        for name in row.ended:
            self._tokens.pop(name, None)
        return contexts
