"""The command line of ``tritonserver``: the same on every runtime, so that the same things are true on both."""

from __future__ import annotations

from collections.abc import Sequence

HTTP, GRPC, METRICS = 8000, 8001, 8002


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
