"""The signals that ``labctl scale --auto`` follows: waiting requests, or the share answered within the limits."""

from __future__ import annotations

import contextlib
import math
from typing import Any, Protocol

from labctl.replicas.goodput import WINDOW_S, GoodputMeter
from labctl.runtimes.record import Record
from labkit.client import metrics
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
