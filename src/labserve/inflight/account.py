"""What a step says of the scheduler's features, to the step log and to /metrics (docs/step-log.md, docs/metrics.md)."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from labserve.inflight.features import NONE, Features
from labserve.inflight.job import Job, Turn

MOST_TENANTS = 32  # that /metrics has by name: a name is the client's, and each makes a metric
OTHERS = "others"


class Account:
    """One of each model."""

    def __init__(self, features: Features) -> None:
        self._reuses = features.kv_cache_reuse
        self._guesses = features.speculation != NONE
        self._shown: set[str] = set()  # tenants that /metrics has

    def line(self, turn: Turn) -> dict[str, Any]:
        """The fields of a step's line."""
        prefill = sum(count for count, letter in zip(turn.computed, turn.phase, strict=True) if letter == "p")
        fields: dict[str, Any] = {"prefill_tokens": prefill, "decode_tokens": sum(turn.computed) - prefill}
        fields["tenants"] = dict(Counter(job.tenant for job in turn.waiting if job.tenant))
        if self._reuses:
            fields["cached"] = turn.cached
        if self._guesses:
            fields |= {"guessed": turn.guessed, "accepted": turn.accepted}
        return fields

    def metrics(self, turn: Turn) -> dict[str, Any]:
        """The metrics that a step changes."""
        shown: dict[str, Any] = {}
        if self._reuses:
            shown["cached_tokens_total"] = sum(turn.cached)
        if self._guesses:
            accepted = sum(turn.accepted)
            shown["guessed_tokens_total"] = {"accepted": accepted, "rejected": sum(turn.guessed) - accepted}
        return shown

    def waiting(self, jobs: Iterable[Job]) -> dict[str, Any]:
        """How many of each tenant wait, also of those that had some before."""
        counts = dict.fromkeys(self._shown, 0)
        for job in jobs:
            if name := self._name(job.tenant):
                counts[name] = counts.get(name, 0) + 1
        return {"waiting_of": counts} if counts else {}

    def _name(self, tenant: str) -> str:
        if tenant and tenant not in self._shown:
            tenant = tenant if len(self._shown) < MOST_TENANTS else OTHERS
            self._shown.add(tenant)
        return tenant
