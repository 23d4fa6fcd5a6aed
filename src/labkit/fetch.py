"""One HTTP request to an untrusted server: it has a deadline, and a limit on the answer's size."""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Mapping

MOST = 16 * 2**20  # bytes of an answer, its head included
CHUNK = 65_536


class TooLarge(OSError):
    """The answer is larger than what is read of it."""


class _Bounded(io.RawIOBase):
    """A socket's bytes, until the deadline and the limit. ``file`` keeps the socket open, and is closed with this."""

    def __init__(self, sock: socket.socket, file: io.BufferedIOBase, deadline: float, most: int) -> None:
        self._sock, self._file, self._deadline, self._left, self._most = sock, file, deadline, most, most

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if (left := self._deadline - time.monotonic()) <= 0:
            raise TimeoutError("it has not answered in full in time")
        self._sock.settimeout(left)
        count = self._sock.recv_into(buffer)
        self._left -= count
        if self._left < 0:
            raise TooLarge(f"its answer is larger than {self._most >> 20} MiB")
        return count


class _Response(http.client.HTTPResponse):
    """Reads through the bounds that its class was made with."""

    deadline, most = 0.0, MOST

    def __init__(self, sock: socket.socket, *args: object, **kwargs: object) -> None:
        super().__init__(sock, *args, **kwargs)  # type: ignore[arg-type]
        self.fp = io.BufferedReader(_Bounded(sock, self.fp, self.deadline, self.most), CHUNK)


def fetch(
    endpoint: str,
    method: str,
    path: str,
    payload: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    *,
    timeout: float,
    most: int = MOST,
) -> tuple[int, bytes]:
    """The status and the body.

    Args:
        timeout: seconds for all of it.
        most: bytes of the answer.

    Raises:
        OSError, http.client.HTTPException: no server listens, or the answer is late, incomplete or too large.
    """
    deadline = time.monotonic() + timeout
    connection = http.client.HTTPConnection(endpoint, timeout=timeout)
    connection.response_class = type("Bounded", (_Response,), {"deadline": deadline, "most": most})
    try:
        connection.request(method, path, payload, dict(headers or {}))
        with connection.getresponse() as response:
            parts = []
            while part := response.read(CHUNK):
                parts.append(part)
            if response.length:  # the body is shorter than promised
                raise http.client.IncompleteRead(b"".join(parts), response.length)
            return response.status, b"".join(parts)
    finally:
        connection.close()
