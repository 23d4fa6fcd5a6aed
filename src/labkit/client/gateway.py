"""The gateway of exercise 07e's client: its servers are being drained, and it keeps the time.

It is plain HTTP. ``POST /generate`` has the header ``Idempotency-Key`` and, where an answer goes on, ``Last-Event-ID``
with the number of tokens that the client has; each line of the answer is a token in JSON, and its last line is null.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


class Refused(Exception):
    """The gateway answered with an HTTP error. ``retry_after``: seconds, None if it said nothing of it."""

    def __init__(self, status: int, retry_after: float | None) -> None:
        super().__init__(f"HTTP {status}")
        self.status, self.retry_after = status, retry_after


class Cut(Exception):
    """The connection ended before the answer did. The server may have computed the request, or a part of it."""


class TokenStream:
    """The tokens of an answer, one after the other. Raises Cut."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[str]:
        try:
            while line := self._response.readline():
                if (token := json.loads(line)) is None:
                    return
                yield str(token)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise Cut(str(error)) from error
        finally:
            self.close()
        raise Cut("the connection ended before the answer did")

    def close(self) -> None:
        """Close the connection: the server stops computing the answer."""
        self._response.close()


class Gateway:
    """The gateway at ``url``, for one user."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._path = parts.netloc, parts.path

    def post(self, request: Mapping[str, Any], key: str, after: int = 0) -> TokenStream:
        """Ask for the answer to a request, without its first ``after`` tokens.

        ``key`` names the request: the gateway does not compute a key twice. Raises Refused, Cut.
        """
        headers = {"Idempotency-Key": key, "Last-Event-ID": str(after)}
        response = self._send("generate", dict(request), headers)
        if response.status == 200:
            return TokenStream(response)
        seconds = response.headers.get("Retry-After")
        response.close()
        raise Refused(response.status, float(seconds) if seconds else None)

    def show(self, token: str) -> bool:
        """Show the user the next token; whether the user is still there."""
        return bool(self._tell("show", token))

    def now(self) -> float:
        """Seconds on the gateway's clock, which only `sleep` moves; it begins at 0."""
        return float(self._tell("now", None))

    def sleep(self, seconds: float) -> None:
        """Wait on the gateway's clock."""
        self._tell("sleep", seconds)

    def _tell(self, action: str, value: Any) -> Any:
        with self._send(action, value, {}) as response:
            return json.loads(response.read())

    def _send(self, action: str, body: Any, headers: dict[str, str]) -> http.client.HTTPResponse:
        """A request on a connection of its own, which its response closes."""
        connection = http.client.HTTPConnection(self._host, timeout=TIMEOUT_S)
        try:
            connection.request("POST", f"{self._path}/{action}", json.dumps(body), headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Cut(str(error)) from error
