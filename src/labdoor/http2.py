"""The part of HTTP/2 (RFC 9113) that a gRPC client needs: one connection, and on it any number of calls.

Our own, because a token's way is what the door costs. ``grpc.aio`` hands each message over from a thread of its own,
one at a time, and ``h2`` keeps for every frame the state that both sides of any exchange could have: with either the
door did not meet its yardsticks (``make bench ARGS=door``). ``h2`` is the server of the tests.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from hpack import Decoder, HPACKError

WINDOW = 2**16  # bytes of one call that the server may send before they are taken
ALL = 2**30  # of all calls: a client that takes nothing must not hold up the others
MOST_FRAME = 2**14  # bytes: every peer must accept frames of this size
HEAD = 9  # bytes before a frame
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 2, 3, 4, 5
CANCEL = 8
GOING = "the server is going away"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# "The dynamic table has no room", which some servers insist on; ":method: POST" and ":scheme: http" of the static one.
POST_HTTP = b"\x20\x83\x86"
Headers = Iterable[tuple[bytes, bytes]]


class Stream(Protocol):
    """What a connection tells a call.

    Attributes:
        number: of its stream; the connection gives it.
        window: bytes that may be sent on it now.
    """

    number: int
    window: int

    def headers(self, headers: Headers) -> None: ...

    def data(self, data: bytes) -> None: ...

    def end(self, reset: int | None = None) -> None:
        """It is over; ``reset`` is the error by which the server broke it off (RFC 9113, section 7)."""

    def lost(self, why: str) -> None:
        """The server has not seen it, or nothing of it comes any more."""


class Broken(Exception):
    """The peer does not speak HTTP/2, or the connection is closed."""


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack("!I", len(payload) << 8 | kind) + struct.pack("!BI", flags, stream) + payload


def literal(name: str, value: str) -> bytes:
    """A field as HPACK writes one that no table keeps (RFC 7541, section 6.2.2)."""
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    raw, length = text.encode(), b""
    left = len(raw)
    if left >= 127:
        length, left = b"\x7f", left - 127
        while left >= 128:
            length, left = length + bytes((left & 127 | 128,)), left >> 7
    return length + bytes((left,)) + raw


class Connection(asyncio.Protocol):
    """A client's connection.

    Attributes:
        open: it takes new calls.
    """

    def __init__(self) -> None:
        self.open = True
        self._closed = ""  # why
        self._transport: Any = None
        self._streams: dict[int, Stream] = {}
        self._next = 1
        self._window = self._initial = 2**16 - 1  # bytes that the server takes: of all calls now, of each at first
        self._most = 100  # calls at a time, until the server says how many
        self._owed = 0  # bytes read since the window of all calls was opened
        self._unread = bytearray()
        self._decoder = Decoder()
        self._block: tuple[int, int, bytes] | None = None  # headers that go on in the next frame: stream, flags, bytes
        self._changed = asyncio.Event()  # for those who wait until they may send
        self._sending: set[int] = set()  # streams whose request waits for a window

    async def begin(self, stream: Stream, path: bytes, metadata: Mapping[str, str], body: bytes) -> None:
        """Send a request, as soon as the server takes it.

        Args:
            path: what ``literal`` made of ``:path`` and the other fields that are always the same.

        Raises:
            Broken: the connection is closed.
        """
        await self._until(lambda: len(self._streams) < self._most or not self.open)
        if not self.open:
            raise Broken(GOING)
        number, self._next = self._next, self._next + 2
        stream.number, stream.window = number, self._initial
        self._streams[number] = stream
        fields = path + b"".join(literal(name.lower(), value) for name, value in metadata.items())
        kind, block, out = HEADERS, POST_HTTP + fields, b""
        while len(block) > MOST_FRAME:
            out, kind, block = out + frame(kind, 0, number, block[:MOST_FRAME]), CONTINUATION, block[MOST_FRAME:]
        out += frame(kind, END_HEADERS, number, block)
        while body and number in self._streams:
            room = min(self._window, stream.window, MOST_FRAME)
            if room > 0:
                part, body = body[:room], body[room:]
                self._window, stream.window = self._window - len(part), stream.window - len(part)
                out += frame(DATA, 0 if body else END_STREAM, number, part)
            else:
                self._transport.write(out)
                out = b""
                self._sending.add(number)
                try:
                    await self._until(lambda: number not in self._streams or min(self._window, stream.window) > 0)
                finally:
                    self._sending.discard(number)
        self._transport.write(out)

    async def _until(self, there: Callable[[], bool]) -> None:
        while not there() and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        if self._closed:
            raise Broken(self._closed)

    def reset(self, number: int) -> None:
        """Tell the server that nobody wants the rest of a call."""
        if self._streams.pop(number, None):
            self._cancel(number)
            self._over()

    def _cancel(self, number: int) -> None:
        self._transport.write(frame(RESET, 0, number, struct.pack("!I", CANCEL)))

    def grant(self, number: int, size: int) -> None:
        """Let the server send so many bytes more of a call, or of all together: 0."""
        self._transport.write(frame(WINDOW_UPDATE, 0, number, struct.pack("!I", size)))

    def close(self) -> None:
        self._transport.close()

    # -- from the server ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        mine = struct.pack("!HIHI", ENABLE_PUSH, 0, INITIAL_WINDOW_SIZE, WINDOW)
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0, mine))
        self.grant(0, ALL)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection was lost{f': {exc}' if exc else ''}")

    def data_received(self, data: bytes) -> None:
        unread, at = self._unread, 0
        unread += data
        try:
            while len(unread) >= at + HEAD:
                size = int.from_bytes(unread[at : at + 3], "big")
                if size > MOST_FRAME:
                    raise Broken(f"a frame of {size:,} bytes")
                if len(unread) < at + HEAD + size:
                    break
                kind, flags, number = struct.unpack_from("!BBI", unread, at + 3)
                payload = bytes(unread[at + HEAD : at + HEAD + size])
                at += HEAD + size
                self._frame(kind, flags, number & 0x7FFFFFFF, payload)
        except (Broken, HPACKError, struct.error, IndexError) as error:
            self._fail(f"the server does not speak HTTP/2: {error}")
            self._transport.abort()
        del unread[:at]

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if (kind == CONTINUATION) != (self._block is not None):
            raise Broken("headers are not whole")
        if kind == DATA:
            self._owed += len(payload)
            if self._owed > ALL // 2:
                self.grant(0, self._owed)
                self._owed = 0
            if stream := self._streams.get(number):
                stream.data(data := _unpadded(flags, payload))
                if flags & END_STREAM:
                    self._end(number)
                elif len(data) < len(payload):
                    self.grant(number, len(payload) - len(data))
        elif kind in (HEADERS, CONTINUATION):
            self._headers(kind, flags, number, payload)
        elif kind == WINDOW_UPDATE:
            (size,) = struct.unpack("!I", payload)
            size &= 0x7FFFFFFF
            if not number:
                self._window += size
            elif stream := self._streams.get(number):
                stream.window += size
            self._changed.set()
        elif kind == PING and not flags & ACK:
            self._transport.write(frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == RESET:
            self._end(number, struct.unpack("!I", payload)[0])
        elif kind == GOAWAY:  # calls up to the last one that it names go on
            self.open = False
            (last,) = struct.unpack_from("!I", payload)
            for late in [one for one in self._streams if one > last & 0x7FFFFFFF]:
                self._streams.pop(late).lost(GOING)
            self._over()

    def _headers(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == HEADERS:
            block = _unpadded(flags, payload)
            self._block = (number, flags & END_STREAM, block[5:] if flags & PRIORITY else block)
        elif self._block:
            of, ends, begun = self._block
            self._block = (of, ends, begun + payload)
        if self._block and flags & END_HEADERS:
            (number, ends, block), self._block = self._block, None
            fields = self._decoder.decode(block, raw=True)  # also of a call that has ended: the table goes on
            if stream := self._streams.get(number):
                stream.headers(fields)
                if ends:
                    self._end(number)

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack("!HI", payload):
            if name == MAX_CONCURRENT_STREAMS:
                self._most = value
            elif name == INITIAL_WINDOW_SIZE:
                for stream in self._streams.values():
                    stream.window += value - self._initial
                self._initial = value
        self._transport.write(frame(SETTINGS, ACK, 0))
        self._changed.set()

    def _end(self, number: int, reset: int | None = None) -> None:
        if stream := self._streams.pop(number, None):
            if reset is None and number in self._sending:  # it needs no more of the request
                self._cancel(number)
            stream.end(reset)
            self._over()

    def _over(self) -> None:
        """There is one call less."""
        self._changed.set()
        if not self.open and not self._streams:
            self._transport.close()

    def _fail(self, why: str) -> None:
        if not self._closed:
            self.open, self._closed = False, why
            streams, self._streams = self._streams, {}
            for stream in streams.values():
                stream.lost(why)
            self._changed.set()


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & PADDED:
        return payload
    if payload[0] >= len(payload):
        raise Broken("more padding than frame")
    return payload[1 : len(payload) - payload[0]]
