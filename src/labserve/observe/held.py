"""The things that a model keeps: how many are in its containers, and its KV cache."""

from collections import deque
from types import ModuleType
from typing import Any

MOST = 100_000  # things that are counted


class Held:
    """Counts the things in a model's containers (of the object, its class, its module) beyond those it began with."""

    def __init__(self, model: Any, module: ModuleType) -> None:
        self._model, self._module = model, module
        self._widest: int | None = None
        self._before = self._count()

    def grown(self) -> int:
        """How many more things there are than at the beginning."""
        return self._count() - self._before

    @property
    def cache(self) -> Any:
        """The KV cache of the model's decoder (labserve.gpt2.kvcache); None for a model that has none."""
        caches = (getattr(value, "cache", None) for value in vars(self._model).values())
        return next((cache for cache in caches if hasattr(cache, "passes")), None)

    def watch_passes(self) -> None:
        """Note how many rows each forward pass of the model's torch module has: the most are :meth:`widest`."""
        for value in vars(self._model).values():
            if hasattr(value, "register_forward_pre_hook"):
                self._widest = 0
                value.register_forward_pre_hook(self._pass, with_kwargs=True)

    def _pass(self, module: Any, args: Any, named: Any) -> None:
        ids = named.get("input_ids", args[0] if args else None)
        if ids is not None:
            self._widest = max(self._widest or 0, len(ids))

    def widest(self) -> int | None:
        """The most rows of one forward pass since the last call; None for a model without a torch module."""
        widest = self._widest
        if widest is not None:
            self._widest = 0
        return widest

    def _count(self) -> int:
        roots = [vars(owner) for owner in (self._model, type(self._model), self._module)]
        todo = [value for root in roots for value in root.values()]
        known: set[int] = set()
        count = 0
        while todo and count < MOST:
            value = todo.pop()
            if id(value) in known:
                continue
            parts = self._parts(value)
            if parts is None:
                continue
            known.add(id(value))
            if _contains(value):
                count += len(parts)
            todo += parts
        return count

    def _parts(self, value: Any) -> list[Any] | None:
        """The content of a container, or of an object of the learner's own class; None for anything else."""
        if isinstance(value, dict):
            return list(value.values())
        if _contains(value):
            return list(value)
        if type(value).__module__ == self._module.__name__ and hasattr(value, "__dict__"):
            return list(vars(value).values())
        return None


def _contains(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple, set, frozenset, deque))
