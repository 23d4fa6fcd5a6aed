"""TLS before the door's own protocol: a connection is counted and watched from before its handshake on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, ClassVar, cast

from labdoor.gate import MOST_CONNECTIONS, MOST_OF_PEER

HANDSHAKE_S = 10.0  # that a client may take, as over the head of a request


class Secured(asyncio.Protocol):
    """A connection until its handshake is done; then ``make()`` is its protocol, over what is decrypted.

    A client that speaks no TLS is disconnected. uvicorn's own TLS would not count a connection before its handshake,
    and would wait a minute for it.
    """

    _opened: ClassVar[set[Secured]] = set()  # connections whose handshake is not done

    def __init__(self, context: ssl.SSLContext, make: Callable[[], asyncio.Protocol]) -> None:
        self._context, self._make = context, make
        self._early, self._lost = bytearray(), False  # what came before `make()` was there
        self.peer = ""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).pause_reading()
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        peers = [one.peer for one in self._opened]
        if len(peers) >= MOST_CONNECTIONS or peers.count(self.peer) >= MOST_OF_PEER:
            cast(asyncio.Transport, transport).abort()
            return
        self._opened.add(self)
        self._task = asyncio.get_running_loop().create_task(self._secure(transport))

    def data_received(self, data: bytes) -> None:
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True

    async def _secure(self, transport: Any) -> None:
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):  # also of ssl
                secured: Any = await loop.start_tls(
                    transport, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
                )
                if secured is None or self._lost:
                    return
                protocol = self._make()
                secured.set_protocol(protocol)
                protocol.connection_made(secured)
                if self._early:
                    protocol.data_received(bytes(self._early))
        finally:
            self._opened.discard(self)


def secured(context: ssl.SSLContext, kind: type[asyncio.Protocol]) -> Any:
    """What stands for ``kind`` where uvicorn makes the protocol of each connection."""

    def make(**settings: Any) -> Secured:
        return Secured(context, lambda: kind(**settings))

    return make
