"""Hostile and careless requests to the OpenAI API, and what became of them: no death, no silence, no leak."""

from __future__ import annotations

import argparse
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks import leaks
from benchmarks.door import MODEL, served
from labkit.tables import format_table

COUNT, SEED, CLIENTS, SILENCE_S, BLOCK = 10_000, 28, 8, 60.0, 500
BAD = {"silence": "silences", "inside": "texts from inside", "500": "internal errors"}
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
    """Send ``--count`` requests, always the same for one seed; print what was sent, what came of it, and what leaked.

    What is held is compared at half of them and at the end, each time once the first block has been sent again and
    nothing is in flight: by then what is allocated once is there.
    """
    count, seen, sizes = options.count or COUNT, Seen(), []
    dead: list[str] = []
    leaked: list[str] = []
    with served() as (record, port), ThreadPoolExecutor(CLIENTS) as pool:
        watched = leaks.parts(record, port)
        pages = (f"127.0.0.1:{port}", record.endpoints.metrics)
        half: Mapping[str, leaks.Held] = {}
        for start in range(0, count, BLOCK):
            seen.send(pool, port, range(start, min(start + BLOCK, count)))
            if dead := leaks.dead(watched):
                break
            sizes.append((min(start + BLOCK, count), leaks.held(watched)))
            if not half and start + BLOCK >= count / 2:
                seen.send(pool, port, range(BLOCK))
                leaks.in_flight(pages)
                half = leaks.held(watched)
        if not dead:
            seen.send(pool, port, range(BLOCK))
            left = leaks.in_flight(pages)
            leaked = [*left, *leaks.grown(half, leaks.held(watched))]
            asked = json.dumps({"model": MODEL, "prompt": "Hello", "max_tokens": 2}).encode()
            serves = b" 200 " in _exchange(port, _request("/v1/completions", asked), SILENCE_S)[:20]
            dead = leaks.dead(watched) or ([] if serves else ["it answers no more"])
    _tell(seen, sizes)
    counts = [f"{len(dead)} deaths", *(f"{seen.outcomes[one]} {word}" for one, word in BAD.items())]
    print("\n".join([*seen.bad[:20], *dead, *leaked]))
    good = not (dead or seen.bad or leaked)
    print(f"{'met' if good else 'not met'}: {seen.requests} requests, {', '.join(counts)}, {len(leaked)} leaks")
    return {**vars(seen), "deaths": dead, "leaks": leaked, "good": good}


@dataclass
class Seen:
    """What was sent, by its kinds (a request can have several), and what came of it."""

    requests: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def send(self, pool: Executor, port: int, numbers: Iterable[int]) -> None:
        for drawn, outcome in pool.map(lambda number: _send(port, random.Random(f"{SEED}-{number}")), numbers):
            self.requests += 1
            self.kinds.update(drawn.kinds)
            self.outcomes[outcome] += 1
            if outcome in BAD:
                self.bad.append(f"{outcome}: {drawn.request[:300]!r}")


def _tell(seen: Seen, sizes: Sequence[tuple[int, Mapping[str, leaks.Held]]]) -> None:
    for title, counted in (("what was sent", seen.kinds), ("what came", seen.outcomes)):
        print(
            format_table(
                [(name, str(number)) for name, number in counted.most_common()], (title, "requests"), right=(1,)
            )
        )
        print()
    rows = [
        (str(sent), *(f"{value:.0f}" for one in held.values() for value in vars(one).values())) for sent, held in sizes
    ]
    head = [f"{part} {what}" for part in ("door", "server") for what in ("MB", "files", "threads")]
    print(format_table(rows, ("requests", *head), right=range(7)))


@dataclass(frozen=True)
class Drawn:
    """A request as bytes, whether its client leaves before the answer is whole, and what is odd about it."""

    request: bytes
    leaves: bool
    kinds: Sequence[str]


def _draw(chance: random.Random) -> Drawn:
    path = chance.choice(PATHS[:2]) if chance.random() < 0.85 else chance.choice(PATHS)
    kinds = [] if path in PATHS[:2] else ["another path"]
    body: dict[str, Any] = {"model": MODEL, "max_tokens": chance.choice((1, 2, 8, 64))}
    body |= {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "I have lived in"}
    body |= {"stream": chance.random() < 0.5}
    if changes := chance.choice((0, 0, 1, 1, 2, 4)):
        kinds.append("fields with odd values")
    for _ in range(changes):
        body[chance.choice(FIELDS)] = chance.choice(VALUES)
    raw = json.dumps(body).encode()
    if chance.random() < 0.1:
        kinds.append("bytes of the body changed")
        place = chance.randrange(len(raw))
        raw = raw[:place] + bytes(chance.randrange(256) for _ in range(chance.randrange(4))) + raw[place + 1 :]
    if chance.random() < 0.02:
        kinds.append("nested 100,000 deep")
        raw = b"[" * 100_000
    if chance.random() < 0.005:
        kinds.append("a body of 5 MB")
        raw = raw[:-1] + b" " * 5_000_000 + raw[-1:]
    headers = ""
    for name in ("x-priority", "x-tenant", "x-timeout-ms", "x-request-id", "traceparent", "origin"):
        if chance.random() < 0.05:
            headers += f"{name}: {chance.choice(('1', '0', '-1', 'x' * 200, '50', 'a b', '00-' + 'a' * 32))}\r\n"
    method = "POST" if chance.random() < 0.95 else chance.choice(("GET", "PUT", "DELETE", "OPTIONS", "X"))
    kinds += [*(["odd headers"] if headers else []), *(["another method"] if method != "POST" else [])]
    request, leaves = _request(path, raw, method, headers), chance.random() < 0.1
    if chance.random() < 0.05:
        kinds.append("cut short")
        request, leaves = request[: chance.randrange(1, len(request))], True
    elif leaves:
        kinds.append("the client leaves early")
    return Drawn(request, leaves, kinds or ["nothing odd"])


def _request(path: str, body: bytes, method: str = "POST", headers: str = "") -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {len(body)}\r\n"
    )
    return head.encode() + b"\r\n" + body


def _send(port: int, chance: random.Random) -> tuple[Drawn, str]:
    drawn = _draw(chance)
    try:
        answer = _exchange(port, drawn.request, chance.random() * 0.2 if drawn.leaves else SILENCE_S)
    except TimeoutError:
        return drawn, "left" if drawn.leaves else "silence"
    except OSError:
        return drawn, "closed"
    if INSIDE.search(answer):
        return drawn, "inside"
    return drawn, answer[9:12].decode("latin-1") if answer else "closed"


def _exchange(port: int, request: bytes, patience: float) -> bytes:
    """All of the answer. Raises TimeoutError if nothing more comes for ``patience`` seconds."""
    answer = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=SILENCE_S) as connection:
        connection.sendall(request)
        connection.settimeout(patience)
        while part := connection.recv(65536):
            answer += part
    return bytes(answer)
