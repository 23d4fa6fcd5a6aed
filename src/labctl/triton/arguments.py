"""The command line of ``tritonserver``: the same on every runtime, so that the same things are true on both."""

from __future__ import annotations

from collections.abc import Sequence

HTTP, GRPC, METRICS = 8000, 8001, 8002
DELAY_MS = 500  # between two hand-overs of Triton's spans


def server_arguments(
    repository: str,
    *,
    address: str = "127.0.0.1",
    ports: tuple[int, int, int] = (HTTP, GRPC, METRICS),
    shm_prefix: str,
    exit_timeout: int,
    backends: str = "",
    caches: str = "",
    extra: Sequence[str] = (),
) -> list[str]:
    """Arguments of ``tritonserver`` for one stack.

    A model that fails to load must not end the server (``--exit-on-error=false``): then the repository index can
    tell which model it was and why, in Triton's own words.
    """
    http, grpc, metrics = ports
    arguments = [
        f"--model-repository={repository}",
        "--exit-on-error=false",
        "--model-control-mode=explicit",
        "--load-model=*",
        f"--exit-timeout-secs={exit_timeout}",
        f"--http-address={address}",
        f"--http-port={http}",
        f"--grpc-address={address}",
        f"--grpc-port={grpc}",
        f"--metrics-address={address}",
        f"--metrics-port={metrics}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
    ]
    if backends:
        arguments.append(f"--backend-directory={backends}")
    if caches:
        arguments.append(f"--cache-directory={caches}")
    return [*arguments, *extra]


def trace_arguments(stack: str, url: str) -> list[str]:
    """Arguments for ``--set trace=otlp://HOST:PORT``: Triton traces every request, as part of its client's trace."""
    values = (
        "mode=opentelemetry", "level=TIMESTAMPS", "rate=1", "count=-1", f"opentelemetry,url={url}",
        f"opentelemetry,resource=service.name=triton-{stack}", f"opentelemetry,bsp_schedule_delay={DELAY_MS}",
    )  # fmt: skip
    return [f"--trace-config={value}" for value in values]
