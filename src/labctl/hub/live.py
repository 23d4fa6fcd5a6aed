"""A learner's live page, through the hub: the page itself is the hub's own copy, and only data comes from the seat."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from labctl.hub import seat as side
from labctl.runtimes.seats import Process, Seat
from labkit.errors import LabError

SLEEPS = "the server sleeps: the next check brings it up"
START_S, ANSWER_S = 60.0, 150.0
MOST_LINE, MOST_ANSWER = 4 * 2**20, 2**20


class Live:
    """The page of one seat's server; the process behind it is started when somebody looks, and ends with the server."""

    def __init__(self, seat: Seat) -> None:
        self._seat, self._lock = seat, threading.Lock()
        self._stack = contextlib.ExitStack()
        self._process: Process | None = None
        self._port, self._token = 0, ""

    def wake(self) -> None:
        """Start the page's process, if none runs. Raises LabError: there is no server to look at."""
        with self._lock:
            if self._process and self._process.poll() is None:
                return
            self._stack.close()
            if not self._seat.used:
                raise LabError(SLEEPS)
            process = self._stack.enter_context(self._seat.start([side.MODULE]))
            assert process.stdin and process.stdout
            timer = threading.Timer(START_S, process.kill)
            timer.start()
            try:
                process.stdin.write(json.dumps({"do": "live"}) + "\n")
                process.stdin.flush()
                where = urlsplit(json.loads(process.stdout.readline(10_000))["address"])
                self._port, self._token = int(where.port or 0), where.path.strip("/")
                if not self._token.replace("-", "").replace("_", "").isalnum():
                    raise ValueError
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                self._stack.close()
                raise LabError(SLEEPS) from None
            finally:
                timer.cancel()
            self._process = process

    def close(self) -> None:
        with self._lock:
            self._stack.close()

    async def events(self) -> AsyncIterator[str]:
        """What happens in the server, as server-sent events; each line of data is one JSON text."""
        async with self._connection("GET", "events", b"") as reader:
            with contextlib.suppress(OSError, ValueError, asyncio.IncompleteReadError):
                while line := await reader.readline():
                    if line.startswith(b"data: "):
                        yield f"data: {json.dumps(json.loads(line[6:]))}\n\n"
                    elif line.startswith(b":"):
                        yield ": still here\n\n"

    async def act(self, name: str, body: bytes) -> tuple[int, Any]:
        """Do what a button of the page does; status and JSON."""
        async with self._connection("POST", name, body) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            answer = json.loads(await asyncio.wait_for(reader.read(MOST_ANSWER), ANSWER_S))
            return (200 if b" 200 " in head.split(b"\r\n")[0] else 409), answer

    @contextlib.asynccontextmanager
    async def _connection(self, method: str, name: str, body: bytes) -> AsyncIterator[asyncio.StreamReader]:
        """Ask the seat's page; in HTTP/1.0, so that the answer is not in chunks and ends with the connection."""
        await asyncio.to_thread(self.wake)
        socket = await asyncio.to_thread(self._seat.connect, self._port)
        reader, writer = await asyncio.open_connection(sock=socket, limit=MOST_LINE)
        try:
            head = f"{method} /{self._token}/{name} HTTP/1.0\r\nHost: 127.0.0.1:{self._port}\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            yield reader
        finally:
            writer.close()


def call_of(body: bytes) -> Mapping[str, Any]:
    """The JSON object of a call. Raises ValueError, RecursionError."""
    call = json.loads(body)
    if not isinstance(call, dict):
        raise ValueError("no object")
    return call
