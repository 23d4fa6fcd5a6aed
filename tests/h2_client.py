"""Calls of ``labdoor.http2`` to a server that the test plays (h2_peer)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from h2_peer import WELL, Peer, Server

from labdoor.http2 import Connection, literal

PATH = literal(":path", "/service/Method") + literal(":authority", "localhost")


class Noted:
    """A call that takes all that comes, and keeps it."""

    def __init__(self, connection: Connection) -> None:
        self.number = self.window = 0
        self.fields: dict[bytes, bytes] = {}
        self.got, self.why, self.reset = b"", "", -1
        self._connection, self._over = connection, asyncio.Event()

    def headers(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.fields |= dict(headers)

    def data(self, data: bytes) -> None:
        self.got += data
        if data:
            self._connection.grant(self.number, len(data))

    def end(self, reset: int | None = None) -> None:
        assert not self._over.is_set()
        self.reset = self.reset if reset is None else reset
        self._over.set()

    def lost(self, why: str) -> None:
        self.why = why
        self.end()

    async def over(self) -> Noted:
        await self._over.wait()
        return self


class Client:
    """A connection, and its other end."""

    def __init__(self, connection: Connection, server: Server, peer: Peer) -> None:
        self.connection, self.server, self.peer = connection, server, peer

    async def asks(self, body: bytes = b"?", metadata: Mapping[str, str] | None = None) -> Noted:
        call = Noted(self.connection)
        await self.connection.begin(call, PATH, metadata or {}, body)
        return call

    async def waits(self, body: bytes = b"?") -> asyncio.Task[Noted]:
        """Begin a call that cannot be sent whole yet."""
        task = asyncio.create_task(self.asks(body))
        await self.peer.settle()
        assert not task.done()
        return task

    async def given_up(self) -> Noted:
        call = await self.asks()
        self.connection.reset(call.number)
        await self.server.until(lambda: call.number in self.peer.asked and self.peer.asked[call.number].reset)
        return call

    async def ends(self, call: Noted) -> None:
        self.peer.answer(call.number, b"!", ends=WELL)
        await call.over()
        assert (call.got, call.why, call.reset, call.fields[b"grpc-status"]) == (b"!", "", -1, b"0")


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    async with Server() as server:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", server.port)
        yield Client(connection, server, await server.peer())
        connection.close()
