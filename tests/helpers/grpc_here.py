"""A gRPC server on loopback, for a block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc


@contextmanager
def grpc_serving(register: Callable[[grpc.Server], object] = lambda server: None, threads: int = 4) -> Iterator[str]:
    """Its address. Without anything registered it answers each call as unimplemented."""
    with ThreadPoolExecutor(threads) as pool:
        server = grpc.server(pool)
        register(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
