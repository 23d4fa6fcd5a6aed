"""What stands before a door that other machines reach: a bearer token, and limits on requests and connections."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import math
import time
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from labdoor.counters import Counters
from labdoor.errors import Refusal
from labkit.errors import LabError

OPEN = ("/health", "/health/ready")  # without a token, for probes and balancers
LEAST_TOKEN = 16  # characters
PEER, TOKEN = (50.0, 100), (200.0, 400)  # requests per second and at once: of one address, of all that have the token
MOST_PEERS = 4_096  # addresses that are remembered
MOST_CONNECTIONS, MOST_OF_PEER = 512, 128
# Seconds that a client may take over the head of a request, and over its body; as the guard's.
PATIENCE_S = {"head": 10.0, "body": 60.0}
MOST_HEAD = 16 * 2**10  # bytes of a request's head


def read_token(path: Path) -> str:
    """The token in a file. Raises LabError: it cannot be read, or is too short to protect anything."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise LabError(f"the token in {path} cannot be read", str(error)) from None
    if len(token) < LEAST_TOKEN:
        raise LabError(f"the token in {path} is too short", f"it has {len(token)} characters of at least {LEAST_TOKEN}")
    return token


def peer(scope: Scope) -> str:
    """The address that a request comes from; of IPv6 its network of 64 bits, which one client may have whole."""
    host = str((scope.get("client") or ("",))[0])
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


class Pace:
    """A token bucket for each key: ``rate`` requests per second, and ``burst`` at once after a pause."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, float(burst)
        self._left: dict[str, tuple[float, float]] = {}  # requests left, and when that was so; the latest last

    def wait(self, key: str, now: float) -> float:
        """Seconds until this request would be allowed; 0 where it is, and then it is counted."""
        left, then = self._left.pop(key, (self._burst, now))
        left = min(self._burst, left + (now - then) * self._rate)
        allowed = left >= 1
        self._left[key] = (left - allowed, now)
        if len(self._left) > MOST_PEERS:
            del self._left[next(iter(self._left))]
        return 0.0 if allowed else (1 - left) / self._rate


class Gate:
    """An ASGI middleware: a request without the token, or of a client that is too fast, goes no further."""

    def __init__(self, app: ASGIApp, token: str, counters: Counters) -> None:
        self._app, self._counters = app, counters
        self._digest = hashlib.sha256(token.encode()).digest()
        self._peers, self._all = Pace(*PEER), Pace(*TOKEN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._judge(scope)
            except Refusal as refusal:
                self._counters.refused.labels(refusal.code).inc()
                await JSONResponse(refusal.body(), refusal.status, refusal.headers)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _judge(self, scope: Scope) -> None:
        """Raises Refusal."""
        now = time.monotonic()
        _in_time(self._peers.wait(peer(scope), now), "from this address")
        if scope["path"] in OPEN:
            return
        scheme, _, token = Headers(scope=scope).get("authorization", "").partition(" ")
        # Of digests: the time that a comparison takes tells nothing of the token, its length included.
        given = hashlib.sha256(token.strip().encode(errors="replace")).digest()
        if not hmac.compare_digest(given, self._digest) or scheme.lower() != "bearer":
            why = "this server needs its token as the API key (Authorization: Bearer TOKEN)"
            raise Refusal(401, why, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
        _in_time(self._all.wait("", now), "with this token")


def _in_time(wait: float, whose: str) -> None:
    if wait:
        headers = {"Retry-After": str(math.ceil(wait))}
        raise Refusal(429, f"too many requests {whose}", code="rate_limit_exceeded", headers=headers)


class Bounded(HttpToolsProtocol):
    """A connection that cannot send without end: httptools keeps a head of any length."""

    _moved = False
    _unused = 0  # bytes since the last head, part of a body, or end of a request

    def data_received(self, data: bytes) -> None:
        self._moved = False
        super().data_received(data)
        self._unused = 0 if self._moved else self._unused + len(data)
        if self._unused > MOST_HEAD and not self.transport.is_closing():
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        self._moved = True

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._moved = True

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._moved = True


class Connection(Bounded):
    """A connection of a client that must be quick: one that keeps the server waiting for a request is closed."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peers = [one.client and one.client[0] for one in self.connections if isinstance(one, Connection)]
        if len(peers) > MOST_CONNECTIONS or peers.count(self.client and self.client[0]) > MOST_OF_PEER:
            transport.abort()
        else:
            self._wait("head")

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if not self.pipeline:  # else nothing more is read until the answer before is whole
            self._wait("body")

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if self.cycle.response_complete:  # it was refused before it was whole
            self._wait("head")
        else:
            self._stop()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body:
            if not self._timer:
                self._wait("body")
        elif self.cycle.response_complete:
            self._wait("head")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _wait(self, part: str) -> None:
        """Begin to count the seconds that the client may take over this part of a request."""
        self._stop()
        if not self.transport.is_closing():
            self._timer = self.loop.call_later(PATIENCE_S[part], self.transport.abort)

    def _stop(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
