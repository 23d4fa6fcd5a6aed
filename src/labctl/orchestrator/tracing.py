"""``--set trace=otlp://HOST:PORT``: Triton's OpenTelemetry mode, and our models' part of the same traces."""

from __future__ import annotations

DELAY_MS = 500  # between two hand-overs of Triton's


def arguments(stack: str, url: str) -> list[str]:
    """Triton's: every request is traced, and continues its client's ``traceparent``."""
    values = (
        "mode=opentelemetry", "level=TIMESTAMPS", "rate=1", "count=-1", f"opentelemetry,url={url}",
        f"opentelemetry,resource=service.name=triton-{stack}", f"opentelemetry,bsp_schedule_delay={DELAY_MS}",
    )  # fmt: skip
    return [f"--trace-config={value}" for value in values]
