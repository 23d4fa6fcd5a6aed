"""The command line of ``tritonserver``: the same on every runtime, so that the same things are true on both.

Part of it is the secret by which Triton tells labctl from a stranger. It is made at each ``up`` and lies in the
stack's folder, for the caller alone to read. Triton takes it only as an argument; it is never in the rendered
repository, a log, a label or the environment of anything.
"""

from __future__ import annotations

from collections.abc import Sequence

HTTP, GRPC, METRICS = 8000, 8001, 8002
DELAY_MS = 500  # between two hand-overs of Triton's spans
KEY = "labs-secret"
APIS = ("model-repository", "trace", "logging")
CLOSED = {True: APIS, False: (*APIS, "shared-memory")}  # the APIs that need the secret, by --allow-client-shm
SHOWN = "(made at each up)"


def server_arguments(
    repository: str, address: str, ports: Sequence[int], shm_prefix: str, exit_timeout: int, **folders: str
) -> list[str]:
    """The arguments that every server has.

    A model that fails to load must not end the server (``--exit-on-error=false``): then the repository index can
    tell which model it was and why, in Triton's own words.

    Args:
        folders: Triton's folders of backends and caches, by the words of its options.
    """
    values: dict[str, object] = {
        "model-repository": repository,
        "exit-on-error": "false",
        "model-control-mode": "explicit",
        "load-model": "*",
        "exit-timeout-secs": exit_timeout,
    }
    for service, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        values |= {f"{service}-address": address, f"{service}-port": port}
    values["backend-config"] = f"python,shm-region-prefix-name={shm_prefix}"
    values |= {f"{kind}-directory": folder for kind, folder in folders.items()}
    return [f"--{name}={value}" for name, value in values.items()]


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
