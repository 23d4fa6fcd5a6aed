"""The slots of a running batch: which request holds which, and which are free."""

import heapq
from collections.abc import Sequence


class Slots:
    """`count` numbered slots. A request that holds one is known by a key, and shown by a name."""

    def __init__(self, count: int) -> None:
        self.names = [""] * count  # of the request in each slot; "" for a free one
        self._free = list(range(count))
        self._slot: dict[object, int] = {}

    def take(self, key: object, name: str) -> None:
        """Give `key` the lowest free slot, if there is one. It is shown by its `name`."""
        if self._free:
            slot = self._slot[key] = heapq.heappop(self._free)
            self.names[slot] = name

    def places(self, keys: Sequence[object]) -> list[int]:
        """The slot of each key, or -1."""
        return [self._slot.get(key, -1) for key in keys]

    def free(self, key: object) -> None:
        """Take the slot of `key` back; harmless if it holds none."""
        slot = self._slot.pop(key, None)
        if slot is not None:
            self.names[slot] = ""
            heapq.heappush(self._free, slot)

    @property
    def used(self) -> int:
        """How many are taken."""
        return len(self._slot)
