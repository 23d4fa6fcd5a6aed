"""What stands before a door that other machines reach: a bearer token, and limits on requests."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import time
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from labdoor.counters import Counters
from labdoor.errors import Refusal
from labkit.errors import LabError

OPEN = ("/health", "/health/ready")  # without a token, for probes and balancers
LEAST_TOKEN = 16  # characters
PEER, TOKEN = (50.0, 100), (200.0, 400)  # requests per second and at once: of one address, of all that have the token
MOST_PEERS = 4_096  # addresses that are remembered


def read_token(path: Path) -> str:
    """The token in a file. Raises LabError: it cannot be read, or is too short to protect anything."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise LabError(f"the token in {path} cannot be read", str(error), code="token-unreadable") from None
    if len(token) < LEAST_TOKEN:
        raise LabError(
            f"the token in {path} is too short",
            f"it has {len(token)} characters of at least {LEAST_TOKEN}",
            code="token-too-short",
        )
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
                # The rest of a body that has no length is not waited for.
                chunked = "transfer-encoding" in Headers(scope=scope)
                await refusal.response({"Connection": "close"} if chunked else {})(scope, receive, send)
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
