"""Calls of ``labdoor.channel`` to a server that the test plays (h2_peer); a message is its bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

import pytest
from grpc import StatusCode
from h2_peer import Peer, Server

from labdoor.channel import Call, Channel, Failed


def asks(channel: Channel, message: bytes = b"?", metadata: Mapping[str, str] | None = None) -> Call[bytes]:
    return Call(channel, "/service/Method", message, bytes, metadata or {})


async def taken(call: Call[bytes]) -> list[bytes]:
    return [one async for one in call]


async def failure(call: Call[bytes]) -> tuple[StatusCode, str]:
    with pytest.raises(Failed) as caught:
        await taken(call)
    return caught.value.code, caught.value.details


@contextmanager
def channel_to(endpoint: str) -> Iterator[Channel]:
    channel = Channel(endpoint)
    try:
        yield channel
    finally:
        channel.close()


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Channel, Peer, Server]]:
    async with Server() as server:
        with channel_to(server.address) as channel:
            await channel.connection()
            yield channel, await server.peer(), server
