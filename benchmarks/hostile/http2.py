"""HTTP/2 by hand: what no library would send, and as much of an answer as says what became of it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
ACK, END_STREAM, END_HEADERS = 1, 1, 4
STREAM = 1
LARGEST = 2**14  # bytes of a frame
INDEXED = {8: 200, 9: 204, 10: 206, 11: 304, 12: 400, 13: 404, 14: 500}  # of HPACK's static table
DIGITS = dict(
    zip(
        ("00000", "00001", "00010", "011001", "011010", "011011", "011100", "011101", "011110", "011111"),
        "0123456789",
        strict=True,
    )
)
Headers = Iterable[tuple[str, str]]


def frame(kind: int, flags: int, payload: bytes = b"", stream: int = STREAM) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call(headers: Headers, pieces: Sequence[bytes], end: bool = True) -> bytes:
    """A whole connection with one request on it. Its body goes in these pieces; ``end``: the last says that it is."""
    sent = [PREFACE, frame(SETTINGS, 0, stream=0)]
    sent.append(frame(HEADERS, END_HEADERS | (END_STREAM if end and not pieces else 0), _block(headers)))
    parts = [piece[at : at + LARGEST] for piece in pieces for at in range(0, max(len(piece), 1), LARGEST)]
    sent += [frame(DATA, 0, part) for part in parts[:-1]]
    sent += [frame(DATA, END_STREAM if end else 0, part) for part in parts[-1:]]
    return b"".join(sent)


def message(body: bytes, flag: int = 0, length: int | None = None) -> bytes:
    """A gRPC message with its prefix, which may say another ``length``."""
    return bytes([flag]) + struct.pack(">I", len(body) if length is None else length) + body


def reply(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of the answer. Raises OSError where the stream or the connection was ended instead."""
    status, body = 0, b""
    for kind, flags, payload in _frames(connection):
        if kind == HEADERS and not status:
            status = _status(payload)
        elif kind == DATA:
            body += payload
        elif kind == RST:
            raise ConnectionError(f"the stream was reset: {int.from_bytes(payload, 'big')}")
        elif kind == GOAWAY:
            raise ConnectionError("the connection was refused")
        elif kind in (SETTINGS, PING) and not flags & ACK:
            connection.sendall(frame(kind, ACK, payload if kind == PING else b"", stream=0))
        if kind in (HEADERS, DATA) and flags & END_STREAM:
            break
    return status, body


def _frames(connection: socket.socket) -> Iterator[tuple[int, int, bytes]]:
    with connection.makefile("rb") as stream:
        while len(head := stream.read(9)) == 9:
            payload = stream.read(int.from_bytes(head[:3], "big"))
            yield head[3], head[4], payload
    raise ConnectionError("the connection was closed")


def _block(headers: Headers) -> bytes:
    """HPACK without its table: every name and value in full."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)


def _text(text: str) -> bytes:
    raw = text.encode("latin-1")
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    rest, number = len(raw) - 127, b"\x7f"
    while rest >= 128:
        number, rest = number + bytes([rest % 128 + 128]), rest // 128
    return number + bytes([rest]) + raw


def _status(block: bytes) -> int:
    """``:status``, the first header of an answer; 0 where it is not."""
    first = block[0]
    if first & 0x80:
        return INDEXED.get(first & 0x7F, 0)
    if first not in (0x08, 0x18, 0x48):  # a literal under the name ":status"
        return 0
    size, raw = block[1] & 0x7F, block[2 : 2 + (block[1] & 0x7F)]
    if not block[1] & 0x80:
        return int(raw)
    bits, digits = "".join(f"{byte:08b}" for byte in raw[:size]), ""
    while len(digits) < 3:
        code = next(code for code in DIGITS if bits.startswith(code))
        digits, bits = digits + DIGITS[code], bits[len(code) :]
    return int(digits)
