"""What a balancer costs: requests/s and p99 through Envoy against straight to a replica, alternately in one run."""

from __future__ import annotations

import asyncio
import os
import re
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

USERS, REQUESTS, THEIRS = 32, 4000, 2000
BODY = b'{"text_input": "hello"}'
PACED_PER_S, PACED = 200, 1000  # requests that leave the machine half idle
PER_S, P99_MS = 0.9, 2.0  # the yardsticks: at least this share of the requests/s, at most this much more of p99


def run(rounds: int) -> dict[str, Any]:
    """Medians over the rounds; one replica, so that both ways end at the same server."""
    found: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="labs-balancer-") as folder:
        workspace = checkout(Path(folder))
        runtime = LocalRuntime(workspace)
        labctl(workspace.root, "up", STACK, "--runtime", "local", "--ports", "auto", "--replicas", "1",
                "--balance", "l7")  # fmt: skip
        try:
            record = runtime.find(STACK)
            assert isinstance(record, Record)
            ways = {"straight": record.servers[0].endpoints, "through Envoy": record.endpoints}
            for ends in ways.values():
                _load(ends.http, REQUESTS // 8)  # warm
                _library(ends.grpc, THEIRS // 8)
            loads = {
                "library": lambda ends: _library(ends.grpc, THEIRS),
                "bare": lambda ends: _load(ends.http, REQUESTS)[0],
                "p99": lambda ends: _load(ends.http, PACED, PACED_PER_S)[1],
            }
            for name in [*loads] * rounds:
                for way, ends in ways.items():
                    found.setdefault(name, {}).setdefault(way, []).append(loads[name](ends))
        finally:
            labctl(workspace.root, "down", STACK)
    library, bare, p99 = ({way: statistics.median(each) for way, each in found[name].items()} for name in loads)
    ratio, ratio_bare = (each["through Envoy"] / each["straight"] for each in (library, bare))
    more = p99["through Envoy"] - p99["straight"]
    rows = [(way, f"{library[way]:.0f}", f"{bare[way]:.0f}", f"{p99[way]:.2f}") for way in ways]
    print(f"requests/s of {USERS} users; p99 in ms at {PACED_PER_S} requests/s")
    print(table(rows, ("way", "tritonclient", "bare HTTP", "p99"), right=[1, 2, 3], width=80))
    met = ratio >= PER_S and more <= P99_MS
    print(f"{'met' if met else 'not met'}: {ratio:.2f} of the requests/s (at least {PER_S}; bare {ratio_bare:.2f}), "
          f"p99 {more:+.2f} ms (at most {P99_MS:+})")  # fmt: skip
    return {"requests_per_s": library, "bare_requests_per_s": bare, "p99_ms": p99, "ratio": ratio,
            "bare_ratio": ratio_bare, "p99_more_ms": more, "users": USERS}  # fmt: skip


def _library(endpoint: str, count: int) -> float:
    """Requests/s of that many requests to the echo model, by ``USERS`` threads that share tritonclient's gRPC."""
    tensor = grpcclient.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[b"hello"]], dtype=np.object_))
    with grpcclient.InferenceServerClient(endpoint) as client, ThreadPoolExecutor(USERS) as users:
        began = time.perf_counter()
        for answered in [users.submit(client.infer, "echo", [tensor]) for _ in range(count)]:
            answered.result()
        return count / (time.perf_counter() - began)


def _load(endpoint: str, count: int, per_s: float = 0.0) -> tuple[float, float]:
    """Requests/s and p99 (ms) of that many requests to the echo model, by ``USERS`` with a connection each.

    Bare HTTP in one thread: a client that computes as much as the server would be measured in its place.

    Args:
        per_s: a request is due so often, and its latency counts from then; 0: each user asks as soon as it is answered.
    """
    began = time.perf_counter()
    latencies = asyncio.run(_users(endpoint, count, per_s))
    return count / (time.perf_counter() - began), float(np.percentile(latencies, 99))


async def _users(endpoint: str, count: int, per_s: float) -> list[float]:
    host, _, port = endpoint.rpartition(":")
    head = f"POST /v2/models/echo/generate HTTP/1.1\r\nHost: {endpoint}\r\nContent-Length: {len(BODY)}\r\n\r\n"
    request = head.encode() + BODY
    numbers, start, latencies = iter(range(count)), time.perf_counter(), []

    async def user() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in numbers:
            due = start + number / per_s if per_s else time.perf_counter()
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            writer.write(request)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", answer)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            await (reader.readexactly(int(length[1])) if length else reader.readuntil(b"0\r\n\r\n"))  # else in chunks
            latencies.append((time.perf_counter() - due) * 1e3)
        writer.close()

    await asyncio.gather(*(user() for _ in range(USERS)))
    return latencies


def labctl(root: Path, *arguments: str) -> None:
    env = {**os.environ, "LABS_ROOT": str(root), "LABS_CACHE": str(root / "cache"), "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-m", "labctl", *arguments], cwd=root, env=env, check=True,
                   stdout=subprocess.DEVNULL)  # fmt: skip
