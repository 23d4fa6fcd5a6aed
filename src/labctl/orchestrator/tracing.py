"""``--set trace=otlp://HOST:PORT``: Triton's OpenTelemetry mode, and our models' part of the same traces."""

from __future__ import annotations

from urllib.parse import urlsplit

from labctl.errors import LabError

SCHEME, USUAL_PORT, PATH = "otlp", 4318, "/v1/traces"
DELAY_MS = 500  # between two hand-overs of Triton's


def receiver(asked: str) -> str:
    """The address of an OTLP/HTTP receiver ("" for none).

    Raises:
        LabError: it is none.
    """
    if not asked:
        return ""
    parts = urlsplit(asked)
    try:
        port = parts.port or USUAL_PORT
    except ValueError:
        port = 0
    if parts.scheme != SCHEME or not parts.hostname or not port or parts.username or parts.query:
        raise LabError(
            f"trace cannot be '{asked}'",
            "it is where an OTLP/HTTP receiver listens",
            f"--set trace=otlp://127.0.0.1:{USUAL_PORT}",
        )
    return f"http://{parts.hostname}:{port}{parts.path.rstrip('/') or PATH}"


def arguments(stack: str, url: str) -> list[str]:
    """Triton's: every request is traced, and continues its client's ``traceparent``."""
    values = (
        "mode=opentelemetry", "level=TIMESTAMPS", "rate=1", "count=-1", f"opentelemetry,url={url}",
        f"opentelemetry,resource=service.name=triton-{stack}", f"opentelemetry,bsp_schedule_delay={DELAY_MS}",
    )  # fmt: skip
    return [f"--trace-config={value}" for value in values]
