"""What a balancer costs: requests/s and p99 through Envoy against straight to a replica, alternately in one run."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from benchmarks.kills import ROOT, STACK, checkout
from labctl.runtimes.base import Record
from labctl.runtimes.local import LocalRuntime
from labctl.tables import table

USERS, REQUESTS = 32, 4000
PER_S, P99_MS = 0.9, 2.0  # the yardsticks: at least this share of the requests/s, at most this much more of p99


def run(rounds: int) -> dict[str, Any]:
    """Medians over the rounds; one replica, so that both ways end at the same server."""
    found: dict[str, list[tuple[float, float]]] = {"straight": [], "through Envoy": []}
    with tempfile.TemporaryDirectory(prefix="labs-balancer-") as folder:
        workspace = checkout(Path(folder))
        runtime = LocalRuntime(workspace)
        labctl(workspace.root, "up", STACK, "--runtime", "local", "--ports", "auto", "--replicas", "1",
                "--balance", "l7")  # fmt: skip
        try:
            record = runtime.find(STACK)
            assert isinstance(record, Record)
            ways = {"straight": record.servers[0].endpoints.grpc, "through Envoy": record.endpoints.grpc}
            for endpoint in ways.values():
                _load(endpoint, REQUESTS // 8)  # warm
            for _ in range(rounds):
                for name, endpoint in ways.items():
                    found[name].append(_load(endpoint, REQUESTS))
        finally:
            labctl(workspace.root, "down", STACK)
    per_s = {name: statistics.median(rate for rate, _ in each) for name, each in found.items()}
    p99 = {name: statistics.median(slowest for _, slowest in each) for name, each in found.items()}
    ratio, more = per_s["through Envoy"] / per_s["straight"], p99["through Envoy"] - p99["straight"]
    rows = [(name, f"{per_s[name]:.0f}", f"{p99[name]:.2f}") for name in found]
    print(table(rows, ("way", "requests/s", "p99, ms"), right=[1, 2], width=80))
    met = ratio >= PER_S and more <= P99_MS
    print(f"{'met' if met else 'not met'}: {ratio:.2f} of the requests/s (at least {PER_S}), "
          f"p99 {more:+.2f} ms (at most {P99_MS:+})")  # fmt: skip
    return {"requests_per_s": per_s, "p99_ms": p99, "ratio": ratio, "p99_more_ms": more, "users": USERS}


def _load(endpoint: str, count: int) -> tuple[float, float]:
    """Requests/s and p99 (ms) of that many unary gRPC requests to the echo model, ``USERS`` at a time.

    One process with four connections: a connection for each user would measure this client.
    """
    text = grpcclient.InferInput("text_input", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[b"hello"]], dtype=np.object_))
    options = [("grpc.use_local_subchannel_pool", 1)]
    clients = [grpcclient.InferenceServerClient(endpoint, channel_args=options) for _ in range(4)]

    def one(number: int) -> float:
        began = time.perf_counter()
        clients[number % len(clients)].infer("echo", [text])
        return (time.perf_counter() - began) * 1e3

    began = time.perf_counter()
    with ThreadPoolExecutor(USERS) as pool:
        latencies = list(pool.map(one, range(count)))
    took = time.perf_counter() - began
    for client in clients:
        client.close()
    return count / took, float(np.percentile(latencies, 99))


def labctl(root: Path, *arguments: str) -> None:
    env = {**os.environ, "LABS_ROOT": str(root), "LABS_CACHE": str(root / "cache"), "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-m", "labctl", *arguments], cwd=root, env=env, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
