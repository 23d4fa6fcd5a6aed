"""The signals that ``labctl scale --auto`` follows: waiting requests, or the share answered within the limits."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from labctl.runtimes.record import Record
from labkit.client import metrics
from labkit.client.metrics import Snapshot
from labkit.errors import LabError


class Signal(Protocol):
    def look(self, record: Record) -> float:
        """A stack's state now: 0 is idle; more than the scaler's target for each replica asks for another one."""

    def why(self, load: float, count: int) -> str:
        """The reason for a decision, in words: what :meth:`look` returned (``load``), for ``count`` replicas."""


class Waiting:
    """Requests that wait in the replicas that answer: in our models, and in Triton's queues before the others."""

    def look(self, record: Record) -> float:
        total = 0.0
        for server in record.servers:
            with contextlib.suppress(LabError):
                snapshot = metrics.scrape(server.endpoints.metrics)
                total += sum(map(snapshot.waiting, record.models))
        return total

    def why(self, load: float, count: int) -> str:
        return f"{load:.0f} wait for {count}" if load else f"nothing waits for {count}"


class WithinLimits:
    """More replicas while less than ``share`` of the last answers were within the stack's limits.

    Fewer come as with :class:`Waiting`. Where requests wait and none was answered for a whole window, none is within.
    """

    def __init__(self, share: float) -> None:
        self._least, self._meter, self._waiting = share, GoodputMeter(), Waiting()
        self._share: float | None = None

    def look(self, record: Record) -> float:
        """Infinite while too few are within the limits. Raises LabError: the stack has no limits."""
        if not record.settings.get("slo"):
            raise LabError(
                f"{record.stack} has no limits of latency, so it counts no goodput",
                "they are given when it is brought up",
                f'labctl up {record.stack} --set "slo=ttft<500ms,tpot<60ms"',
                code="slo-none",
            )
        waiting = self._waiting.look(record)
        with contextlib.suppress(LabError):  # a replica is away for the moment
            self._meter.take(metrics.scrape(",".join(server.endpoints.metrics for server in record.servers)))
        self._share = self._meter.share()
        if self._share is None and waiting and self._meter.seconds >= WINDOW_S:
            self._share = 0.0
        too_few = self._share is not None and self._share < self._least
        return math.inf if too_few else min(waiting, 1.0)

    def why(self, load: float, count: int) -> str:
        if load == math.inf:
            return f"{self._share:.0%} within the limits by {count}"
        return self._waiting.why(load, count)


def parse_scale_target(target: str) -> dict[str, Any]:
    """Arguments of a Scaler: for ``4``, waiting requests for each replica; for ``95%``, a share. Raises LabError."""
    number = target.removesuffix("%")
    if not number.replace(".", "", 1).isdecimal() or (number != target and float(number) > 100):
        why = "it takes a number of waiting requests, or a share of at most 100%"
        raise LabError(
            f"--target {target} cannot be used", why, "--target 4, or --target 95%", code="scale-target-invalid"
        )
    return {"target": float(number)} if number == target else {"signal": WithinLimits(float(number) / 100)}


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

    def rates(self, model: str | None = None) -> dict[str, Rate]:
        """By class, of one model or of all; {} if no limits are set, or after one look."""
        if not self.seconds:
            return {}
        (_, before), (_, after) = self._seen[0], self._seen[-1]

        def rate(name: str) -> float:
            keys = [key for key in after if key[1] == name and model in (None, key[0])]
            return sum(after[key] - before.get(key, 0.0) for key in keys) / self.seconds

        names = dict.fromkeys(
            key[1].removeprefix(ANSWERED) for key in after if key[1].startswith(ANSWERED) and model in (None, key[0])
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
