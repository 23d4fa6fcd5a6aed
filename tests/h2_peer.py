"""A server of HTTP/2 that another package keeps to the rules (h2), played by a test in its own event loop."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Self

import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    PingAckReceived,
    RequestReceived,
    SettingsAcknowledged,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

DEADLINE_S = 20.0
HEAD = [(":status", "200"), ("content-type", "application/grpc")]
WELL = [("grpc-status", "0")]
PREFACE = 24  # bytes before a client's first frame
P = ParamSpec("P")


def played(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test in each kind of loop, with a deadline; nothing may come to the loop's handler of exceptions."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def watched() -> None:
            found: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
            async with asyncio.timeout(DEADLINE_S):
                await test(*args, **kwargs)
            assert found == []

        for loop in (asyncio.new_event_loop, uvloop.new_event_loop):
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(watched())

    return run


def prefixed(*messages: bytes) -> bytes:
    """Messages as gRPC sends them."""
    return b"".join(b"\0" + len(one).to_bytes(4, "big") + one for one in messages)


@dataclass
class Asked:
    """One request, as far as it has come.

    Attributes:
        reset: the error by which the client broke it off.
    """

    headers: list[tuple[bytes, bytes]]
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    reset: int | None = None


class Peer(asyncio.Protocol):
    """One connection of a client.

    Attributes:
        frames: what the client has sent: kind and stream.
        taking: its windows are opened again as bytes come.
        lost: it is closed.
    """

    def __init__(self, server: Server) -> None:
        self.http2 = H2Connection(H2Configuration(client_side=False))
        self.asked: dict[int, Asked] = {}
        self.events: list[Event] = []
        self.frames: list[tuple[int, int]] = []
        self.taking, self.lost = True, False
        self._server = server
        self._transport: Any = None
        self._unread, self._skip = b"", PREFACE
        self._unsent: dict[int, bytes] = {}
        self._trailers: dict[int, Iterable[tuple[str, str]]] = {}

    # -- what a test does ----------------------------------------------------------------------------------------------

    async def request(self, number: int) -> Asked:
        """The whole request of this stream."""
        await self._server.until(lambda: number in self.asked and self.asked[number].whole)
        return self.asked[number]

    def answer(
        self, number: int, *data: bytes, ends: Iterable[tuple[str, str]] = (), head: bool = True, padding: int = 0
    ) -> None:
        """Send a head, each ``data`` in a frame or as the windows allow, then what it ends with."""
        if head:
            self.http2.send_headers(number, HEAD)
        for one in data:
            room = min(self.http2.local_flow_control_window(number), self.http2.max_outbound_frame_size)
            if padding or (len(one) <= room and not self._unsent.get(number)):
                self.http2.send_data(number, one, pad_length=padding or None)
            else:
                self._unsent[number] = self._unsent.get(number, b"") + one
        if ends:
            self._trailers[number] = ends
        self._pump(number)

    def unsent(self, number: int) -> int:
        return len(self._unsent.get(number, b""))

    def say(self, *frames: bytes) -> None:
        """Send bytes past h2."""
        self.flush()
        self._transport.write(b"".join(frames))

    async def settle(self, setting: SettingCodes | None = None, value: int = 0) -> None:
        """Change a setting, and wait until the client has done all that it can do now."""
        if setting is not None:
            self.http2.update_settings({setting: value})
            await self._one_more(SettingsAcknowledged)
        for _ in range(3):  # what one made it do may be done after that one's answer
            self.http2.ping(b"settled?")
            await self._one_more(PingAckReceived)

    def open(self, size: int, number: int | None = None) -> None:
        self.http2.increment_flow_control_window(size, number)
        self.flush()

    def reset(self, number: int, error: ErrorCodes | int) -> None:
        self.http2.reset_stream(number, error)
        self.flush()

    def leave(self, last: int) -> None:
        """Send GOAWAY; h2 itself would then take nothing more."""
        self.say(b"\0\0\x08\x07\0\0\0\0\0" + last.to_bytes(4, "big") + bytes(4))

    def drop(self) -> None:
        self._transport.abort()

    def finish(self) -> None:
        """Send nothing more, and wait for the client's end."""
        self._transport.write_eof()

    def flush(self) -> None:
        self._transport.write(self.http2.data_to_send())

    # -- what happens --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self.http2.initiate_connection()
        self.flush()
        self._server.peers.append(self)
        self._server.changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._server.changed.set()

    def data_received(self, data: bytes) -> None:
        self._count(data)
        try:
            for event in self.http2.receive_data(data):
                self.events.append(event)
                self._note(event)
        except ProtocolError as error:
            self._server.wrong.append(repr(error))
        self.flush()
        self._server.changed.set()

    def _note(self, event: Event) -> None:
        if isinstance(event, RequestReceived):
            self.asked[event.stream_id] = Asked([(bytes(name), bytes(value)) for name, value in event.headers])
        elif isinstance(event, DataReceived):
            self.asked[event.stream_id].body += event.data
            if self.taking:
                self.http2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.asked[event.stream_id].whole = True
            if self._server.says is not None:
                self.answer(event.stream_id, prefixed(self._server.says), ends=WELL)
        elif isinstance(event, StreamReset):
            self.asked[event.stream_id].reset = int(event.error_code)
            self._unsent.pop(event.stream_id, None)
            self._trailers.pop(event.stream_id, None)
        elif isinstance(event, WindowUpdated):
            for number in list(self._unsent):
                self._pump(number)
        elif isinstance(event, ConnectionTerminated):
            self._server.wrong.append(repr(event))

    def _pump(self, number: int) -> None:
        left = self._unsent.get(number, b"")
        while left and (room := min(self.http2.local_flow_control_window(number), self.http2.max_outbound_frame_size)):
            self.http2.send_data(number, left[:room])
            left = left[room:]
        self._unsent[number] = left
        if not left and number in self._trailers:
            self.http2.send_headers(number, self._trailers.pop(number), end_stream=True)
        self.flush()

    def _count(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= self._skip + 9:
            head = self._unread[self._skip :][:9]
            self.frames.append((head[3], int.from_bytes(head[5:], "big")))
            self._unread, self._skip = self._unread[self._skip + 9 :], int.from_bytes(head[:3], "big")

    async def _one_more(self, kind: type[Event]) -> None:
        def count() -> int:
            return sum(isinstance(event, kind) for event in self.events)

        before = count()
        self.flush()
        await self._server.until(lambda: count() > before)


class Server:
    """Takes connections on a port of 127.0.0.1; ``async with``.

    Attributes:
        peers: its connections, in the order in which they came.
        says: answered at once to each request; None: nothing is.
        wrong: what clients did that the rules forbid; none may be left at the end.
    """

    def __init__(self, says: bytes | None = None, port: int = 0) -> None:
        self.says, self.port, self.peers, self.wrong = says, port, list[Peer](), list[str]()
        self.changed = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.drop()
        await self.until(lambda: all(peer.lost for peer in self.peers))
        assert kind or self.wrong == []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def until(self, there: Callable[[], object]) -> None:
        """Wait until something is so; asked whenever something has come."""
        while not there():
            self.changed.clear()
            await self.changed.wait()

    async def peer(self, number: int = 0) -> Peer:
        await self.until(lambda: len(self.peers) > number)
        return self.peers[number]
