"""Hostile and careless requests to the OpenAI API, and what became of them: no death, no silence, no leak."""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from benchmarks.door import MODEL, served
from labctl.runtimes.leftovers import DOOR
from labkit.tables import table

COUNT, SEED, CLIENTS, SILENCE_S, BLOCK = 10_000, 28, 8, 60.0, 500
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


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Send ``--count`` requests, always the same for one seed; print what came of them, and raise where it is bad."""
    count, outcomes, bad = options.count or COUNT, Counter[str](), list[str]()
    with served() as (_, port):
        (door,) = [one for one in psutil.process_iter(["name"]) if one.info["name"] == DOOR and _listens(one, port)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            sizes = []
            for start in range(0, count, BLOCK):
                numbers = range(start, min(start + BLOCK, count))
                for sent, outcome in pool.map(lambda number: _send(port, random.Random(f"{SEED}-{number}")), numbers):
                    outcomes[outcome] += 1
                    if outcome in ("silence", "inside", "500"):
                        bad.append(f"{outcome}: {sent[:300]!r}")
                sizes.append((door.memory_info().rss, len(door.net_connections()), door.num_threads()))
        alive = door.is_running() and door.status() != psutil.STATUS_ZOMBIE
        last = _exchange(port, _request("/health", b"", "GET"), SILENCE_S)[:12]
        answer = _exchange(
            port,
            _request("/v1/completions", json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 2}).encode()),
            SILENCE_S,
        )
    print(
        table([(name, str(number)) for name, number in outcomes.most_common()], ("what came", "requests"), right=(1,))
    )
    rows = [
        (str((i + 1) * BLOCK), f"{rss / 2**20:.0f}", str(open_), str(threads))
        for i, (rss, open_, threads) in enumerate(sizes)
    ]
    print(table(rows, ("requests", "memory MB", "connections", "threads"), right=range(4)))
    print("\n".join(bad[:20]))
    good = alive and last.endswith(b"200") and b" 200 " in answer[:20] and not bad
    print(f"{'met' if good else 'not met'}: {count} requests, alive {alive}, bad answers {len(bad)}")
    return {"count": count, "outcomes": outcomes, "sizes": sizes, "alive": alive, "bad": bad}


def _listens(process: psutil.Process, port: int) -> bool:
    return any(one.laddr.port == port and one.status == psutil.CONN_LISTEN for one in process.net_connections())


def _draw(chance: random.Random) -> tuple[bytes, bool]:
    """One request as bytes, and whether its client leaves before the answer is whole."""
    path = chance.choice(PATHS[:2]) if chance.random() < 0.85 else chance.choice(PATHS)
    body: dict[str, Any] = {"model": MODEL, "max_tokens": chance.choice((1, 2, 8, 64))}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "I have lived in"}
    body |= {"stream": chance.random() < 0.5}
    for _ in range(chance.choice((0, 0, 1, 1, 2, 4))):
        body[chance.choice(FIELDS)] = chance.choice(VALUES)
    raw = json.dumps(body).encode()
    if chance.random() < 0.1:  # damaged
        place = chance.randrange(len(raw))
        raw = raw[:place] + bytes(chance.randrange(256) for _ in range(chance.randrange(4))) + raw[place + 1 :]
    if chance.random() < 0.02:
        raw = b"[" * 100_000
    headers = ""
    for name in ("x-priority", "x-tenant", "x-timeout-ms", "x-request-id", "traceparent", "origin"):
        if chance.random() < 0.05:
            headers += f"{name}: {chance.choice(('1', '0', '-1', 'x' * 200, '50', 'a b', '00-' + 'a' * 32))}\r\n"
    method = "POST" if chance.random() < 0.95 else chance.choice(("GET", "PUT", "DELETE", "OPTIONS", "X"))
    request = _request(path, raw, method, headers)
    if chance.random() < 0.05:
        request = request[: chance.randrange(1, len(request))]  # cut short
        return request, True
    return request, chance.random() < 0.1


def _request(path: str, body: bytes, method: str = "POST", headers: str = "") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def _send(port: int, chance: random.Random) -> tuple[bytes, str]:
    request, leaves = _draw(chance)
    try:
        answer = _exchange(port, request, chance.random() * 0.2 if leaves else SILENCE_S)
    except TimeoutError:
        return request, "left" if leaves else "silence"
    except OSError:
        return request, "closed"
    if INSIDE.search(answer):
        return request, "inside"
    return request, answer[9:12].decode("latin-1") if answer else "closed"


def _exchange(port: int, request: bytes, patience: float) -> bytes:
    """All of the answer. Raises TimeoutError where nothing more comes for ``patience`` seconds."""
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=SILENCE_S) as connection:
        connection.sendall(request)
        connection.settimeout(patience)
        while part := connection.recv(65536):
            answer += part
    return bytes(answer)
