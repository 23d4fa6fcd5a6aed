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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from benchmarks.steal import undisturbed
from labctl.runtimes.record import Endpoints, Record
from labctl.workspace import Workspace
from labkit.tables import format_table

ROOT = Path(__file__).resolve().parents[1]
STACK = "quick"  # of the lab of faults
USERS, REQUESTS, THEIRS = 32, 4000, 2000
BODY = b'{"text_input": "hello"}'
PACED_PER_S, PACED = 200, 1000  # requests that leave the machine half idle
BALANCE = ("l7", "l4")
YARDSTICK = "tritonclient"  # as people ask; the others compute less for a request, and leave more to Envoy
PER_S, P99_MS = 0.9, 2.0  # the yardsticks: at least this share of the requests/s, at most this much more of p99


def run(rounds: int) -> dict[str, Any]:
    """Medians over the rounds, in which the ways take turns; one replica behind each Envoy."""
    found: dict[str, dict[str, list[float]]] = {}
    with served("l7") as l7, served("l4") as l4:
        ways = {"straight": l7.servers[0].endpoints, "l7": l7.endpoints, "l4": l4.endpoints}
        for ends in ways.values():
            _load(ends.http, REQUESTS // 8)  # warm
            _library(ends.grpc, THEIRS // 8)
        metrics = ways["straight"].metrics
        loads: dict[str, Callable[[Endpoints], float]] = {
            "tritonclient": lambda ends: _library(ends.grpc, THEIRS),
            "Locust": lambda ends: _locust(ends.http, metrics),
            "bare HTTP": lambda ends: _load(ends.http, REQUESTS)[0],
            "p99": lambda ends: _load(ends.http, PACED, PACED_PER_S)[1],
        }
        for name in [*loads] * rounds:
            for way, value in undisturbed(partial(_each, loads[name], ways)).items():
                found.setdefault(name, {}).setdefault(way, []).append(value)
    medians = {name: {way: statistics.median(each) for way, each in sides.items()} for name, sides in found.items()}
    p99 = medians.pop("p99")
    ratios = {name: {way: each[way] / each["straight"] for way in BALANCE} for name, each in medians.items()}
    more = {way: p99[way] - p99["straight"] for way in BALANCE}
    rows = [_row(name, each, ".0f", ratios[name], ".2f") for name, each in medians.items()]
    rows.append(_row(f"p99 at {PACED_PER_S}/s, ms", p99, ".2f", more, "+.2f"))
    print(
        format_table(
            rows, (f"requests/s of {USERS} users", "straight", "l7", "", "l4", ""), right=range(1, 6), width=80
        )
    )
    ratio = ratios[YARDSTICK]["l7"]
    verdict = "met" if ratio >= PER_S and more["l7"] <= P99_MS else "not met"
    print(
        f"{verdict}: through l7, {ratio:.2f} of the requests/s of {YARDSTICK} (at least {PER_S}), "
        f"p99 {more['l7']:+.2f} ms (at most {P99_MS:+})"
    )
    return {
        "requests_per_s": medians,
        "p99_ms": p99,
        "ratios": ratios,
        "p99_more_ms": more,
        "users": USERS,
        "rounds": found,
    }


def checkout(root: Path) -> Workspace:
    """A checkout by links, with the lab of faults, whose servers start in a moment."""
    (root / "pyproject.toml").symlink_to(ROOT / "pyproject.toml")
    for name, faults in (("labs", "tests/faults_lab"), ("model_repos", "tests/faults_lab/models")):
        (root / name).mkdir()
        for path in (ROOT / name).iterdir():
            (root / name / path.name).symlink_to(path)
        (root / name / ("99-faults" if name == "labs" else "faults")).symlink_to(ROOT / faults)
    return Workspace(root, root / "cache")


@contextmanager
def served(balance: str) -> Iterator[Record]:
    """The echo model, one replica behind an Envoy, in a checkout of its own."""
    with tempfile.TemporaryDirectory(prefix="labs-balancer-") as folder:
        workspace = checkout(Path(folder))
        labctl(
            workspace.root,
            "up",
            STACK,
            "--runtime",
            "local",
            "--ports",
            "auto",
            "--replicas",
            "1",
            "--balance",
            balance,
        )
        try:
            yield Record.read(workspace.folder(STACK).state_file)
        finally:
            labctl(workspace.root, "down", STACK)


def _row(name: str, each: dict[str, float], form: str, price: dict[str, float], price_form: str) -> tuple[str, ...]:
    """A line of the table: straight, then each balance and its price."""
    row = [name, format(each["straight"], form)]
    for way in BALANCE:
        row += [format(each[way], form), format(price[way], price_form)]
    return tuple(row)


def _each(load: Callable[[Endpoints], float], ways: dict[str, Endpoints]) -> dict[str, float]:
    return {way: load(ends) for way, ends in ways.items()}


def _locust(endpoint: str, metrics: str) -> float:
    """Requests/s of lab 04's users, over HTTP."""
    argv = [sys.executable, "-m", "benchmarks.echo_users", endpoint, metrics]
    done = subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


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
    subprocess.run(
        [sys.executable, "-m", "labctl", *arguments], cwd=root, env=env, check=True, stdout=subprocess.DEVNULL
    )
