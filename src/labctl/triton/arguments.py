"""The command line of ``tritonserver``, the same on every runtime.

Part of it is a secret by which Triton recognises labctl. It is made at each ``up``, and stored in the stack's folder,
where only the caller can read it. Triton takes it only as an argument. It is never in the rendered repository, a log, a
label or an environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from labkit.errors import LabError

HTTP, GRPC, METRICS = 8000, 8001, 8002
SCHEME, USUAL_PORT, PATH = "otlp", 4318, "/v1/traces"
DELAY_MS = 500  # between two hand-overs of Triton's spans
KEY = "labs-secret"
APIS = ("model-repository", "trace", "logging")
CLOSED = {True: APIS, False: (*APIS, "shared-memory")}  # the APIs that need the secret, by --allow-client-shm
SHOWN = "(made at each up)"


def server_arguments(
    repository: str, address: str, ports: Sequence[int], shm_prefix: str, exit_timeout: int, **folders: str
) -> list[str]:
    """The arguments that every server has; ``folders`` are Triton's, of backends and caches, by its options' words.

    A model that fails to load must not end the server (``--exit-on-error=false``), so that the repository index names
    the model and the reason, in Triton's own words.
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


def closing_arguments(client_shm: bool, secret: str | None) -> list[str]:
    """The arguments that close Triton's own APIs to clients without the secret; none if there is no secret."""
    group = f"{','.join(CLOSED[client_shm])}:{KEY}={secret}"
    return [f"--http-restricted-api={group}", f"--grpc-restricted-protocol={group}"] if secret else []


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


def http_header(secret: str | None) -> dict[str, str]:
    """The header of an HTTP request that opens Triton's closed APIs."""
    return {KEY: secret} if secret else {}


def receiver(asked: str | None) -> str | None:
    """The URL of the OTLP/HTTP receiver that ``--set trace=`` names, if any. Raises LabError: it is not one."""
    if not asked:
        return None
    try:
        parts = urlsplit(asked)
        port = USUAL_PORT if parts.port is None else parts.port
    except ValueError:  # an unmatched bracket, a port of letters
        parts, port = urlsplit(""), 0
    if parts.scheme != SCHEME or not parts.hostname or not port or parts.username or parts.query:
        raise LabError(
            f"trace cannot be '{asked}'",
            "it is where an OTLP/HTTP receiver listens",
            f"--set trace=otlp://127.0.0.1:{USUAL_PORT}",
            code="trace-receiver-invalid",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname  # an IPv6 address
    return f"http://{host}:{port}{parts.path.rstrip('/') or PATH}"
