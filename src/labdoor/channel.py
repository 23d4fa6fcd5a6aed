"""gRPC in the door's own event loop: calls that each send one message, and get one or many.

Source: gRPC over HTTP/2 (grpc/doc/PROTOCOL-HTTP2.md).
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Generic, Self, TypeVar
from urllib.parse import unquote

from grpc import StatusCode

from labdoor.http2 import WINDOW, Broken, Connection, Headers, literal

CONNECT_S, AGAIN_S = 5.0, 1.0
PREFIX = 5  # bytes before a message: whether it is compressed, and its length
CODES = {b"%d" % code.value[0]: code for code in StatusCode}
RESETS = {7: StatusCode.UNAVAILABLE, 8: StatusCode.CANCELLED, 11: StatusCode.RESOURCE_EXHAUSTED}
Address = tuple[str, int]
Message = TypeVar("Message")


class Failed(Exception):
    """A call that did not end well."""

    def __init__(self, code: StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code, self.details = code, details


class Call(Generic[Message]):
    """One call: an asynchronous iterator over its messages, which begins when the first one is asked for.

    Raises:
        Failed: while iterating.
    """

    def __init__(
        self,
        channel: Channel,
        path: str,
        message: bytes,
        parse: Callable[[bytes], Message],
        metadata: Mapping[str, str],
    ) -> None:
        self._channel, self._path, self._message, self._metadata = channel, path, message, metadata
        self._parse = parse
        self._connection: Connection | None = None
        self._part = bytearray()
        self._whole: deque[bytes] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._owed = 0  # bytes that have come since the window was last opened
        self._said: tuple[StatusCode, str] = (StatusCode.UNKNOWN, "it ended without a status")
        self._over: Failed | bool = False  # True: it ended well
        self.number = self.window = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            if self._connection is None:
                await self._begin()
            while not self._whole:
                if self._over:
                    raise self._over if isinstance(self._over, Failed) else StopAsyncIteration
                self._waiting = asyncio.get_running_loop().create_future()
                await self._waiting
        except asyncio.CancelledError:  # nobody waits for it any more
            self.cancel()
            raise
        message = self._whole.popleft()
        self._grant()
        return self._parse(message)

    async def _begin(self) -> None:
        message = self._message
        self._connection = await self._channel.connection()
        try:
            await self._connection.begin(
                self, _fields(self._path), self._metadata, b"\0" + len(message).to_bytes(4, "big") + message
            )
        except Broken as error:
            raise Failed(StatusCode.UNAVAILABLE, str(error)) from None
        if self._over:  # given up while it waited for its place
            self._connection.reset(self.number)

    def cancel(self) -> None:
        """Give it up; harmless where it has ended or not begun."""
        if self._connection and not self._over:
            self._connection.reset(self.number)
            self._finish(Failed(StatusCode.CANCELLED, "given up"))

    # -- what its connection tells -----------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        self._owed += len(data)
        part = self._part
        part += data
        while len(part) >= PREFIX and len(part) >= (size := PREFIX + int.from_bytes(part[1:PREFIX], "big")):
            self._whole.append(bytes(part[PREFIX:size]))
            del part[:size]
        self._grant()
        if self._whole:
            self._wake()

    def headers(self, headers: Headers) -> None:
        """A head or trailers; the status is in the last of them."""
        said = dict(headers)
        if b"grpc-status" in said:
            code = CODES.get(said[b"grpc-status"], StatusCode.UNKNOWN)
            self._said = (code, unquote(said.get(b"grpc-message", b"").decode(errors="replace")))
        elif (status := said.get(b":status", b"200")) != b"200":
            self._said = (StatusCode.UNAVAILABLE, f"HTTP status {status.decode(errors='replace')}")

    def end(self, reset: int | None = None) -> None:
        code, details = self._said
        if reset is not None:
            code, details = RESETS.get(reset, StatusCode.INTERNAL), f"the server broke it off (HTTP/2 error {reset})"
        self._finish(True if code is StatusCode.OK else Failed(code, details))

    def lost(self, why: str) -> None:
        self._finish(Failed(StatusCode.UNAVAILABLE, why))

    def _finish(self, how: Failed | bool) -> None:
        self._over = self._over or how
        self._wake()

    def _wake(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def _grant(self) -> None:
        """Let the server send on when all that came has been taken; a message may be longer than the window."""
        if self._owed >= WINDOW // 2 and not self._whole and not self._over and self._connection:
            self._connection.grant(self.number, self._owed)
            self._owed = 0


@functools.cache
def _fields(path: str) -> bytes:
    same = {":path": path, ":authority": "localhost", "te": "trailers", "content-type": "application/grpc"}
    return b"".join(literal(name, value) for name, value in same.items())


class Channel:
    """Connections to the server at ``endpoint``: ``host:port``, or several addresses in gRPC's words, asked in turn.

    Several are ``ipv4:a:1,b:2`` or ``dns:///name:1``. A lost address gets no calls; while the others serve, it is tried
    again, and a name is looked up again.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._connections: dict[Address, Connection] = {}
        self._turn = itertools.count()
        self._known = 1  # addresses
        self._looking: asyncio.Task[None] | None = None
        self._looked, self._why = -math.inf, ""

    async def connection(self) -> Connection:
        """One that takes calls. Raises Failed."""
        there = self._there()
        if len(there) < self._known and (not there or time.monotonic() > self._looked + AGAIN_S):
            if not self._looking or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            if not there:
                await asyncio.shield(self._looking)
                there = self._there()
        if not there:
            raise Failed(StatusCode.UNAVAILABLE, self._why)
        return there[next(self._turn) % len(there)]

    def close(self) -> None:
        if self._looking:
            self._looking.cancel()
        for one in self._connections.values():
            one.close()

    def _there(self) -> list[Connection]:
        return [one for one in self._connections.values() if one.open]

    async def _look(self) -> None:
        """Connect to each address that has no connection."""
        self._looked = time.monotonic()
        try:
            found = await self._addresses()
        except OSError as error:
            self._why = f"{self._endpoint}: {error.strerror or error}"
            return
        self._known = len(found)
        self._connections = {address: one for address, one in self._connections.items() if one.open}
        await asyncio.gather(*(self._connect(one) for one in found if one not in self._connections))

    async def _connect(self, address: Address) -> None:
        try:
            async with asyncio.timeout(CONNECT_S):
                _, made = await asyncio.get_running_loop().create_connection(Connection, *address)
            self._connections[address] = made
        except OSError as error:  # TimeoutError, too, without words of its own
            self._why = f"{address[0]}:{address[1]}: {error.strerror or f'no connection within {CONNECT_S:g} s'}"

    async def _addresses(self) -> list[Address]:
        if not self._endpoint.startswith("dns:///"):
            return [_parted(one) for one in self._endpoint.removeprefix("ipv4:").split(",")]
        host, port = _parted(self._endpoint.removeprefix("dns:///"))
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return sorted({(str(address[0]), int(address[1])) for *_, address in found})


def _parted(address: str) -> Address:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
