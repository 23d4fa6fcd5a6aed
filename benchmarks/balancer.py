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
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kills import ROOT, STACK, checkout
from labctl.runtimes.base import Record
from labctl.runtimes.local import LocalRuntime
from labctl.tables import table

USERS, REQUESTS = 32, 4000
BODY = b'{"text_input": "hello"}'
PACED_PER_S, PACED = 200, 1000  # requests that leave the machine half idle
PER_S, P99_MS = 0.9, 2.0  # the yardsticks: at least this share of the requests/s, at most this much more of p99


def run(rounds: int) -> dict[str, Any]:
    """Medians over the rounds; one replica, so that both ways end at the same server."""
    per_s: dict[str, list[float]] = {"straight": [], "through Envoy": []}
    p99: dict[str, list[float]] = {way: [] for way in per_s}
    with tempfile.TemporaryDirectory(prefix="labs-balancer-") as folder:
        workspace = checkout(Path(folder))
        runtime = LocalRuntime(workspace)
        labctl(workspace.root, "up", STACK, "--runtime", "local", "--ports", "auto", "--replicas", "1",
                "--balance", "l7")  # fmt: skip
        try:
            record = runtime.find(STACK)
            assert isinstance(record, Record)
            ways = {"straight": record.servers[0].endpoints.http, "through Envoy": record.endpoints.http}
            for endpoint in ways.values():
                _load(endpoint, REQUESTS // 8)  # warm
            for _ in range(rounds):
                for name, endpoint in ways.items():
                    per_s[name].append(_load(endpoint, REQUESTS)[0])
                for name, endpoint in ways.items():
                    p99[name].append(_load(endpoint, PACED, PACED_PER_S)[1])
        finally:
            labctl(workspace.root, "down", STACK)
    rate, slow = ({name: statistics.median(each) for name, each in found.items()} for found in (per_s, p99))
    ratio, more = rate["through Envoy"] / rate["straight"], slow["through Envoy"] - slow["straight"]
    rows = [(name, f"{rate[name]:.0f}", f"{slow[name]:.2f}") for name in rate]
    header = ("way", f"requests/s of {USERS} users", f"p99 at {PACED_PER_S} requests/s, ms")
    print(table(rows, header, right=[1, 2], width=80))
    met = ratio >= PER_S and more <= P99_MS
    print(f"{'met' if met else 'not met'}: {ratio:.2f} of the requests/s (at least {PER_S}), "
          f"p99 {more:+.2f} ms (at most {P99_MS:+})")  # fmt: skip
    return {"requests_per_s": rate, "p99_ms": slow, "ratio": ratio, "p99_more_ms": more, "users": USERS}


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
