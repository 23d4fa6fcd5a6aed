"""Goodput: which requests were answered within limits, by their class. The environment's LABS_SLO has the limits.

They are in labctl's own form, such as "ttft<500ms,tpot<60ms"; without it nothing is counted.
"""

import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

LIMIT = re.compile(r"(ttft|tpot)<([0-9.]+)ms")
ANSWERED = ("length", "stop")  # why a request ended that has its whole answer
FAILED = "failed"
MOST_CLASSES, LONGEST = 32, 64  # of names that /metrics has: a name is the client's, and each makes a metric
OTHERS, USUAL = "others", "default"


@dataclass(slots=True)
class Life:
    """A request that is here: when it came, and its first and last tokens (0 while it has none), in seconds."""

    arrived: float
    kind: str = USUAL
    first: float = 0.0
    latest: float = 0.0
    tokens: int = 0

    def within(self, limits: dict[str, float]) -> bool:
        """Whether its times, in ms, meet the limits. The TPOT of an answer of one token is 0."""
        times = {
            "ttft": 1e3 * (self.first - self.arrived),
            "tpot": 1e3 * (self.latest - self.first) / max(1, self.tokens - 1),
        }
        return self.tokens > 0 and all(times[name] <= limit for name, limit in limits.items())


class GoodputCounter:
    """Counts the requests that have ended; one that its client gave up counts on neither side."""

    def __init__(self) -> None:
        limits = LIMIT.findall(os.environ.get("LABS_SLO", ""))
        self._limits = {name: float(limit) for name, limit in limits}
        self._classes: set[str] = set()

    def kind(self, request: Any) -> str:
        """The class of a Triton request: its parameter `tenant`, else its `request_priority`."""
        if not self._limits:
            return USUAL
        given: dict[str, Any] = {}
        with suppress(Exception):  # an older Triton has no parameters; what is wrong with them is the model's affair
            given = json.loads(request.parameters() or "{}")
        priority = given.get("request_priority")
        name = str(given.get("tenant") or (f"priority {priority}" if priority else USUAL))[:LONGEST]
        if name not in self._classes and len(self._classes) >= MOST_CLASSES:
            return OTHERS
        self._classes.add(name)
        return name

    def ended(self, life: Life, why: str) -> dict[str, dict[str, int]]:
        """The increments of the counters at a request's end."""
        if not self._limits or why not in (*ANSWERED, FAILED):
            return {}
        good = why != FAILED and life.within(self._limits)
        return {"slo_requests_total": {life.kind: 1}, "slo_good_total": {life.kind: int(good)}}
