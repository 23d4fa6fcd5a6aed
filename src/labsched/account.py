"""The scheduler's features in /metrics (docs/operate/metrics.md)."""

from collections.abc import Iterable
from typing import Any

from labsched.features import NONE, Features
from labsched.request import Request
from labsched.step import Step

MOST_TENANTS = 32  # by name on /metrics: clients choose the names, and each name makes a metric
OTHERS = "others"


class Account:
    """The counts of one model (vLLM: `SchedulerStats`, vllm/v1/metrics/stats.py)."""

    def __init__(self, features: Features) -> None:
        self._reuses = features.kv_cache_reuse
        self._drafts = features.speculation != NONE
        self._shown: set[str] = set()  # tenants that /metrics has

    def metrics(self, step: Step) -> dict[str, Any]:
        """The metrics that a step changes."""
        shown: dict[str, Any] = {}
        if self._reuses:
            shown["cached_tokens_total"] = sum(step.cached)
        if self._drafts:
            accepted = sum(step.accepted)
            shown["guessed_tokens_total"] = {"accepted": accepted, "rejected": sum(step.guessed) - accepted}
        return shown

    def waiting(self, requests: Iterable[Request]) -> dict[str, Any]:
        """How many requests of each tenant wait, 0 for tenants that had some before."""
        counts = dict.fromkeys(self._shown, 0)
        for request in requests:
            if name := self._name(request.tenant):
                counts[name] = counts.get(name, 0) + 1
        return {"waiting_of": counts} if counts else {}

    def _name(self, tenant: str) -> str:
        if tenant and tenant not in self._shown:
            tenant = tenant if len(self._shown) < MOST_TENANTS else OTHERS
            self._shown.add(tenant)
        return tenant
