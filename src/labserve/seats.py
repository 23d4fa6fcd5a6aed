"""The numbered places of a running batch: who has which, and which is free."""

import heapq


class Seats:
    """`count` seats; whoever has one is known by a key, and shown by a name."""

    def __init__(self, count: int) -> None:
        self.names = [""] * count  # who has each seat; "" for nobody
        self._free = list(range(count))
        self._seat: dict[object, int] = {}

    def take(self, key: object, name: object = None) -> int:
        """The lowest free seat, for `key`, which is its own name unless it has another; -1 where none is free."""
        if not self._free:
            return -1
        seat = heapq.heappop(self._free)
        self.names[seat] = str(key if name is None else name)
        self._seat[key] = seat
        return seat

    def of(self, key: object) -> int:
        """The seat of `key`, or -1."""
        return self._seat.get(key, -1)

    def free(self, key: object) -> None:
        """Give the seat of `key` back; harmless when there is none."""
        seat = self._seat.pop(key, None)
        if seat is not None:
            self.names[seat] = ""
            heapq.heappush(self._free, seat)

    @property
    def used(self) -> int:
        """How many are taken."""
        return len(self._seat)
