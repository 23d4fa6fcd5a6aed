"""Requests that are bytes on a connection: a way to write what no client library would."""

from __future__ import annotations

import contextlib
import re
import socket
import time

from benchmarks.hostile import http2
from benchmarks.hostile.sent import Sent

HEAD = 2**16  # bytes; no answer of Triton or of the guard has longer headers
INTERIM = re.compile(rb"HTTP/1\.1 1\d\d[^\r]*\r\n(?:[^\r]+\r\n)*\r\n")


def answer(sent: Sent, endpoint: str, patience: float) -> tuple[int, str]:
    """Status and words of the answer. Raises TimeoutError, or OSError where the connection was closed instead."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=patience) as connection:
        connection.settimeout(patience if sent.leave is None else sent.leave)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may have been refused before its end
            connection.sendall(sent.body)
        status, body = http2.reply(connection) if sent.protocol == "h2" else _reply(connection, patience)
        return status, body.decode(errors="replace")


def _reply(connection: socket.socket, patience: float) -> tuple[int, bytes]:
    """The first answer of HTTP/1 that is no interim one (100 Continue), and what else came with it."""
    told, deadline = b"", time.monotonic() + patience
    while b"\r\n\r\n" not in told and len(told) < HEAD and time.monotonic() < deadline:
        if not (piece := connection.recv(HEAD)):
            break
        told += piece
        while INTERIM.match(told):
            told = told.partition(b"\r\n\r\n")[2]
    head, _, body = told.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1") or not words[1].isdigit():
        raise ConnectionError(f"no answer of HTTP/1: {told[:60]!r}")
    return int(words[1]), body
