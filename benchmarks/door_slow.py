"""A client that reads slowly from the door, for ten minutes: neither the door nor the server may grow for it.

Its answer is far larger than what sockets hold, and it takes ``RATE`` bytes a second of it. Another client asks
something small at every look: it must be served meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks import leaks
from benchmarks.door import MODEL, PROMPT, served
from labkit.evidence import metrics
from labkit.tables import format_table

MINUTES, LOOK_S, PATIENCE_S = 10.0, 5.0, 30.0
CHOICES, TOKENS, LIKELY = 16, 1000, 5  # of the answer: some 10 MB, with the log probabilities of the likeliest tokens
RATE = 8192  # bytes a second
WARM = 0.2  # of the time: until then memory may grow, once
SHOWN = 12  # rows of the table


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=MINUTES, help="door-slow: how long it reads")


@dataclass
class Reader:
    """One client. ``ends``: how its streams ended; ``taken``: bytes of the present one, None while there is none."""

    port: int
    until: float
    taken: int | None = None
    total: int = 0
    ends: Counter[str] = field(default_factory=Counter)

    def read(self) -> None:
        while time.monotonic() < self.until:
            self._stream()

    def _stream(self) -> None:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RATE)
            connection.settimeout(PATIENCE_S)
            connection.connect(("127.0.0.1", self.port))
            more = {"n": CHOICES, "logprobs": LIKELY, "stream": True}
            connection.sendall(request(TOKENS, **more))
            tail, self.taken = b"", 0
            while time.monotonic() < self.until:
                try:
                    part = connection.recv(RATE)
                except OSError as error:
                    tail = repr(error).encode()
                    break
                if not part:
                    break
                tail, self.taken, self.total = (tail + part)[-200:], self.taken + len(part), self.total + len(part)
                time.sleep(len(part) / RATE)
            else:
                tail = b"open"
        known = {b"open": "open to the end", b"[DONE]": "whole"}
        self.ends[next((name for word, name in known.items() if word in tail), f"cut: {tail!r}")] += 1
        self.taken = None


def request(tokens: int, **more: Any) -> bytes:
    """A completion, as bytes of HTTP; its connection is closed after it."""
    body = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, **more}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}"
    return f"{head}\r\n\r\n".encode() + body


def answer(port: int) -> float:
    """Seconds until another client has its short answer. Raises OSError: it has none."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(request(2))
        if b" 200 " not in connection.recv(65536):
            raise OSError("the door refused it")
    return time.monotonic() - began


def run(asked: argparse.Namespace) -> dict[str, Any]:
    """Look every few seconds; print memory over time, and whether it was flat once it was warm."""
    looks: list[dict[str, Any]] = []
    with served() as (record, port):
        watched, began = leaks.parts(record, port), time.monotonic()
        reader = Reader(port, began + 60 * asked.minutes)
        thread = threading.Thread(target=reader.read, daemon=True)
        thread.start()
        while thread.is_alive():
            other, held, busy = answer(port), leaks.held(watched), _running(record.endpoints.metrics)
            taken = reader.taken
            looks.append(
                {"s": time.monotonic() - began, "taken": taken, "engine": busy, "other": other, **_megabytes(held)}
            )
            thread.join(LOOK_S)
        left = leaks.in_flight([f"127.0.0.1:{port}", record.endpoints.metrics])
    return _verdict(looks, reader, left, os.getloadavg()[0])


def _running(endpoint: str) -> float:
    return sum(value for (_, name), value in metrics.scrape(endpoint).own.items() if name == "labs_running")


def _megabytes(held: dict[str, leaks.Held]) -> dict[str, float]:
    return {f"{part} MB": one.memory for part, one in held.items()}


def _verdict(looks: list[dict[str, Any]], reader: Reader, left: list[str], load: float) -> dict[str, Any]:
    columns = ("s", "taken", "engine", "door MB", "server MB", "other")
    shown = looks[:: max(1, len(looks) // SHOWN)]
    rows = [[f"{one[name] or 0:.{2 if name == 'other' else 0}f}" for name in columns] for one in shown]
    head = ("second", "bytes taken", "the engine has", "door MB", "server MB", "another client waits, s")
    print(format_table(rows, head, right=range(6)))
    warm = [one for one in looks if one["s"] >= WARM * looks[-1]["s"]]
    faults = [f"{one}: {many} streams" for one, many in reader.ends.items() if one.startswith("cut")]
    faults += [f"still in flight: {one}" for one in left]
    fifth = max(1, len(warm) // 5)
    for part in ("door MB", "server MB"):
        first, last = (statistics.median(one[part] for one in some) for some in (warm[:fifth], warm[-fifth:]))
        if last - first > leaks.ALLOWED.memory:
            faults.append(f"{part}: {first:.0f} -> {last:.0f}")
        most = max(one[part] for one in warm)
        print(f"{part}, medians of the first and the last fifth once warm: {first:.0f}, {last:.0f}; at most {most:.0f}")
    behind = sum(one["taken"] is not None and not one["engine"] for one in warm) / len(warm)
    if behind < 0.5:
        faults.append(f"the reader was not slow: in {behind:.0%} of the looks the engine was done before it")
    most_s = max(one["other"] for one in warm)
    print("\n".join(faults))
    print(
        f"{'not met' if faults else 'met'}: {looks[-1]['s']:.0f} s, {reader.total / 1e6:.1f} MB read, streams: "
        f"{dict(reader.ends)}; another client waited at most {most_s:.2f} s; load of the machine {load:.1f}"
    )
    return {"looks": looks, "ends": reader.ends, "total": reader.total, "behind": behind, "faults": faults}
