"""The command line of ``tritonserver``: the same on every runtime, so that the same things are true on both.

Part of it is the secret by which Triton tells labctl from a stranger. It is made at each ``up`` and lies in the
stack's folder, for the caller alone to read. Triton takes it only as an argument; it is never in the rendered
repository, a log, a label or the environment of anything.
"""

from __future__ import annotations

HTTP, GRPC, METRICS = 8000, 8001, 8002
DELAY_MS = 500  # between two hand-overs of Triton's spans
KEY = "labs-secret"
APIS = ("model-repository", "trace", "logging")
CLOSED = {True: APIS, False: (*APIS, "shared-memory")}  # the APIs that need the secret, by --allow-client-shm
SHOWN = "(made at each up)"


def trace_arguments(stack: str, url: str) -> list[str]:
    """Arguments for ``--set trace=otlp://HOST:PORT``: Triton traces every request, as part of its client's trace."""
    values = (
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        "rate=1",
        "count=-1",
        f"opentelemetry,url={url}",
        f"opentelemetry,resource=service.name=triton-{stack}",
        f"opentelemetry,bsp_schedule_delay={DELAY_MS}",
    )
    return [f"--trace-config={value}" for value in values]


def http_header(secret: str) -> dict[str, str]:
    return {KEY: secret} if secret else {}
