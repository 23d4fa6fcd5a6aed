"""Goodput while a stack serves: requests per second within its limits, by class, as its models count them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from labkit.client.metrics import Snapshot

ANSWERED, GOOD = "labs_slo_requests_total ", "labs_slo_good_total "  # before the class (docs/guide/load-tools.md)
USUAL = "default"  # the class of requests that have none
WINDOW_S = 10.0


@dataclass(frozen=True)
class Rate:
    """Requests per second over the last seconds: those within the limits, and all that were answered or failed."""

    good: float
    answered: float

    def __str__(self) -> str:
        return f"{self.good:.1f} of {self.answered:.1f}"


class GoodputMeter:
    """The last snapshots of a server, or of several as one."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[tuple[str, str], float]]] = deque()

    def take(self, snapshot: Snapshot, at: float | None = None) -> None:
        """Add a snapshot; a restarted server's counters start over.

        Args:
            at: when it was taken, in seconds of the monotonic clock; default: now.
        """
        now = time.monotonic() if at is None else at
        counts = {key: value for key, value in snapshot.own.items() if key[1].startswith((ANSWERED, GOOD))}
        if self._seen and any(counts.get(key, 0.0) < value for key, value in self._seen[-1][1].items()):
            self._seen.clear()
        self._seen.append((now, counts))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_S:
            self._seen.popleft()

    @property
    def seconds(self) -> float:
        """How long it has looked; at least the window once it is full."""
        return self._seen[-1][0] - self._seen[0][0] if self._seen else 0.0

    def rates(self, model: str = "") -> dict[str, Rate]:
        """By class, of one model or of all; {} if no limits are set, or after one look."""
        if not self.seconds:
            return {}
        (_, before), (_, after) = self._seen[0], self._seen[-1]

        def rate(name: str) -> float:
            keys = [key for key in after if key[1] == name and model in ("", key[0])]
            return sum(after[key] - before.get(key, 0.0) for key in keys) / self.seconds

        names = dict.fromkeys(
            key[1].removeprefix(ANSWERED) for key in after if key[1].startswith(ANSWERED) and model in ("", key[0])
        )
        return {name: Rate(rate(GOOD + name), rate(ANSWERED + name)) for name in names}

    def share(self) -> float | None:
        """The share of answered requests that met the limits; None if none was answered."""
        rates = self.rates().values()
        answered = sum(rate.answered for rate in rates)
        return sum(rate.good for rate in rates) / answered if answered else None

    def facts(self, model: str) -> list[tuple[str, str, str]]:
        """Rows of the live page: what, Triton's count, the model's."""
        return [
            (f"goodput/s{'' if name == USUAL else f', {name}'}", "–", str(rate))
            for name, rate in sorted(self.rates(model).items())
        ]
