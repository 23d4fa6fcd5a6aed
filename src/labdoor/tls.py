"""TLS before the door's own protocol: a connection is counted and watched from before its handshake on."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

import uvicorn

from labdoor.gate import MOST_CONNECTIONS, MOST_OF_PEER

HANDSHAKE_S = 10.0  # that a client may take, as over the head of a request
PAUSE_S = 0.1  # where the process has no file descriptor left for a connection


class Server(uvicorn.Server):
    """uvicorn's server; with a ``context`` of ssl each connection begins with a handshake.

    uvicorn's own TLS would not count a connection before its handshake, and would wait a minute for it.
    """

    def __init__(self, config: uvicorn.Config, context: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._context = context
        self._accepting: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if not (self._context and sockets):
            await super().startup(sockets)
            return
        await super().startup([])
        (listening,) = sockets
        listening.listen(self.config.backlog)
        self._accepting = asyncio.create_task(accept(listening, self._context, self._protocol))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._accepting:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        """As uvicorn makes that of a connection."""
        kind: Any = self.config.http_protocol_class
        made: asyncio.Protocol = kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        return made


async def accept(listening: socket.socket, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]) -> None:
    """Accept connections until it is cancelled; ``make()`` is the protocol of each, over what is decrypted.

    A client that speaks no TLS, or not in time, is disconnected. So is one too many.
    """
    listening.setblocking(False)
    loop = asyncio.get_running_loop()
    opened: dict[asyncio.Task[None], str] = {}  # handshakes, each with its client's address
    try:
        while True:
            try:
                connection, (peer, *_) = await loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            if len(opened) >= MOST_CONNECTIONS or list(opened.values()).count(peer) >= MOST_OF_PEER:
                connection.close()
                continue
            task = loop.create_task(_handshake(connection, context, make))
            opened[task] = peer
            task.add_done_callback(opened.pop)
    finally:
        for task in opened:
            task.cancel()


async def _handshake(connection: socket.socket, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]) -> None:
    with contextlib.suppress(OSError):  # also of ssl
        await asyncio.get_running_loop().connect_accepted_socket(
            make, connection, ssl=context, ssl_handshake_timeout=HANDSHAKE_S
        )
