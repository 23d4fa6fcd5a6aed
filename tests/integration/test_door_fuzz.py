"""Hostile and careless requests to the OpenAI API, and what becomes of them: no death, no silence, no leak.

Memory is what a process and its children have written and share with no other process. So shared memory is not counted
twice, and a program's files, which other servers may have open too, are not counted at all.
"""

from __future__ import annotations

import json
import random
import re
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from lab_server import LabServer

from labkit.client import metrics
from labkit.waiting import attempts

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("two-servers")]
MODEL, SETTINGS = "apart-gpt2", {"slots": 32, "step_ms": 10, "token_ms": 0.1}
COUNT, SEED, CLIENTS, SILENCE_S, BLOCK = 5000, 28, 8, 60.0, 500
SETTLE_S, LOOK_S = 90.0, 0.25
BAD = ("silence", "inside", "500")
# Counts that are zero while nothing is asked: the API's, the models', Triton's.
IN_FLIGHT = ("labs_door_running", "labs_running", "labs_waiting", "nv_inference_pending_request_count")
INSIDE = re.compile(rb"Traceback|\.py\b|site-packages|/dev/shm")  # what no client may read
FIELDS = (
    "model",
    "prompt",
    "messages",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "n",
    "stop",
    "stream",
    "stream_options",
    "echo",
    "best_of",
    "logprobs",
    "tools",
    "ignore_eos",
    "logit_bias",
    "presence_penalty",
    "repetition_penalty",
    "response_format",
    "user",
    "nonsense",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    17,
    0.5,
    1e308,
    2**31,
    2**63,
    -(2**70),
    "",
    "a",
    "\0",
    "\ud800",
    "x" * 3000,
    [],
    {},
    [1, 2],
    ["a", "b"],
    [[1]],
    {"a": {"b": []}},
    [{"role": "user", "content": "hi"}],
    [{"role": "user"}],
    [{}],
    [{"role": "tool", "content": "x"}],
    [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    {"include_usage": True},
    {"type": "json_schema"},
)
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/models",
    "/v1/embeddings",
    "/health",
    "/metrics",
    "/v1/%00",
    "/",
)


def test_odd_requests_neither_end_nor_fill_nor_silence_the_api(
    lab_server: Callable[..., LabServer], doors: Callable[..., openai.OpenAI]
) -> None:
    """What is held is compared at half of them and at the end, each time once the first block has been sent again and
    nothing is in flight: by then what is allocated once is there.
    """
    port, server = doors("two-servers", **SETTINGS).base_url.port, lab_server("two-servers", **SETTINGS)
    assert port
    watched = {"API": listener(port), "server": listener(int(server.grpc.rpartition(":")[2]))}
    pages = (f"127.0.0.1:{port}", server.metrics)
    outcomes: Counter[str] = Counter()
    bad: list[str] = []
    half: Mapping[str, Held] = {}
    with ThreadPoolExecutor(CLIENTS) as pool:
        for start in range(0, COUNT, BLOCK):
            bad += sent(pool, port, range(start, start + BLOCK), outcomes)
            assert not dead(watched), f"{dead(watched)} after {start + BLOCK} requests: {outcomes}"
            if not half and start + BLOCK >= COUNT / 2:
                bad += sent(pool, port, range(BLOCK), outcomes)
                assert in_flight(pages) == []
                half = held(watched)
        bad += sent(pool, port, range(BLOCK), outcomes)
    assert bad == []
    assert in_flight(pages) == []
    assert grown(half, held(watched)) == []
    asked = json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 2}).encode()
    assert b" 200 " in exchange(port, a_request("/v1/completions", asked), SILENCE_S)[:20]
    assert dead(watched) == [] and outcomes["200"] > COUNT / 10


def sent(pool: Executor, port: int, numbers: Iterable[int], outcomes: Counter[str]) -> list[str]:
    """Send the requests of these numbers, always the same for one seed; the bad ends, with their requests."""
    bad = []
    for drawn, outcome in pool.map(lambda number: send(port, random.Random(f"{SEED}-{number}")), numbers):
        outcomes[outcome] += 1
        if outcome in BAD:
            bad.append(f"{outcome}: {drawn.request[:300]!r}")
    return bad


@dataclass(frozen=True)
class Drawn:
    """A request as bytes, and whether its client leaves before the answer is whole."""

    request: bytes
    leaves: bool


def draw(chance: random.Random) -> Drawn:
    path = chance.choice(PATHS[:2]) if chance.random() < 0.85 else chance.choice(PATHS)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": chance.choice((1, 2, 8, 64))}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "I have lived in"}
    body |= {"stream": chance.random() < 0.5}
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
        body[chance.choice(FIELDS)] = chance.choice(VALUES)
    raw = json.dumps(body).encode()
    if chance.random() < 0.1:
        place = chance.randrange(len(raw))
        raw = raw[:place] + bytes(chance.randrange(256) for _ in range(chance.randrange(4))) + raw[place + 1 :]
    if chance.random() < 0.02:
        raw = b"[" * 100_000
    if chance.random() < 0.005:
        raw = raw[:-1] + b" " * 5_000_000 + raw[-1:]
    headers = ""
    for name in ("x-priority", "x-tenant", "x-timeout-ms", "x-request-id", "traceparent", "origin"):
        if chance.random() < 0.05:
            headers += f"{name}: {chance.choice(('1', '0', '-1', 'x' * 200, '50', 'a b', '00-' + 'a' * 32))}\r\n"
    method = "POST" if chance.random() < 0.95 else chance.choice(("GET", "PUT", "DELETE", "OPTIONS", "X"))
    request, leaves = a_request(path, raw, method, headers), chance.random() < 0.1
    if chance.random() < 0.05:
        request, leaves = request[: chance.randrange(1, len(request))], True
    return Drawn(request, leaves)


def a_request(path: str, body: bytes, method: str = "POST", headers: str = "") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def send(port: int, chance: random.Random) -> tuple[Drawn, str]:
    drawn = draw(chance)
    try:
        answer = exchange(port, drawn.request, chance.random() * 0.2 if drawn.leaves else SILENCE_S)
    except TimeoutError:
        return drawn, "left" if drawn.leaves else "silence"
    except OSError:
        return drawn, "closed"
    if INSIDE.search(answer):
        return drawn, "inside"
    return drawn, answer[9:12].decode("latin-1") if answer else "closed"


def exchange(port: int, request: bytes, patience: float) -> bytes:
    """All of the answer. Raises TimeoutError if nothing more comes for ``patience`` seconds."""
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=SILENCE_S) as connection:
        connection.sendall(request)
        connection.settimeout(patience)
        while part := connection.recv(65536):
            answer += part
    return bytes(answer)


# -- what is held ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Held:
    """``memory`` in MB; ``files`` are open ones, sockets among them."""

    memory: float = 0.0
    files: int = 0
    threads: int = 0


# What may come and go under one load: an allocator's rest, a connection that is kept, a thread of a pool.
ALLOWED = Held(memory=8.0, files=8, threads=8)


def listener(port: int) -> psutil.Process:
    """The process that listens on this port of loopback."""
    found = psutil.net_connections("tcp")
    (pid,) = {one.pid for one in found if one.laddr and one.laddr.port == port and one.status == psutil.CONN_LISTEN}
    return psutil.Process(pid)


def dead(watched: Mapping[str, psutil.Process]) -> list[str]:
    """Which of them have ended."""
    return [name for name, one in watched.items() if not one.is_running() or one.status() == psutil.STATUS_ZOMBIE]


def held(watched: Mapping[str, psutil.Process]) -> dict[str, Held]:
    """What each process holds now, its children included."""
    return {name: _total([one, *one.children(recursive=True)]) for name, one in watched.items()}


def _total(processes: Iterable[psutil.Process]) -> Held:
    found = Held()
    for one in processes:
        found = Held(found.memory + _written(one.pid), found.files + one.num_fds(), found.threads + one.num_threads())
    return found


def _written(pid: int) -> float:
    """MB. Raises psutil.NoSuchProcess."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Dirty:", "Swap:"))) / 2**10


def grown(before: Mapping[str, Held], after: Mapping[str, Held], allowed: Held = ALLOWED) -> list[str]:
    """What has grown by more than ``allowed``, in words; [] if nothing leaks."""
    return [
        f"{part}: {what} {was:.0f} -> {now:.0f}"
        for part in before
        for (what, was), now, more in zip(
            vars(before[part]).items(), vars(after[part]).values(), vars(allowed).values(), strict=True
        )
        if now - was > more
    ]


def in_flight(pages: Iterable[str], patience: float = SETTLE_S) -> list[str]:
    """The gauges on these metrics pages (``host:port``) that do not go back to zero once no request is sent."""
    left: list[str] = []
    for _ in attempts(patience, LOOK_S):
        left = [
            line
            for page in pages
            for line in metrics.metrics_page(page).splitlines()
            if line.startswith(IN_FLIGHT) and float(line.rpartition(" ")[2])
        ]
        if not left:
            break
    return left
