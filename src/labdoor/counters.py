"""The door's own counters, for Prometheus: Triton has the rest on its metrics port."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class DoorCounters:
    """One registry for one door. ``running`` counts the requests that are being answered."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("labs_door_requests", "Requests by HTTP status", ["model", "code"], registry=registry)
        self.left = Counter("labs_door_cancelled", "Requests cancelled, by why: left, slow", ["why"], registry=registry)
        self.tokens = Counter("labs_door_tokens", "Tokens that models have generated", ["model"], registry=registry)
        self.running = 0
        gauge = Gauge("labs_door_running", "Requests that are being answered", registry=registry)
        gauge.set_function(lambda: self.running)
        self.ttft = Histogram(
            "labs_door_first_text_seconds",
            "From a request's arrival to its first text",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )

    def page(self) -> bytes:
        return generate_latest(self.registry)
