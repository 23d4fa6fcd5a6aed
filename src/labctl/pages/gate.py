"""Which requests a page of ours accepts: requests under this machine's name, and not from other pages."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from labkit.errors import LabError

if TYPE_CHECKING:
    from starlette.requests import Request


ANY = "*"  # any forwarded name: the page is behind JupyterHub, which lets only its learner in


def objection(headers: Mapping[str, str], forwarded: str | None = None) -> str | None:
    """Say why a request with these headers (names in lower case) is refused; None if it is not.

    ``forwarded``: another name, under which a person has forwarded the page's port; browsers may add a port to it.
    """
    host = headers.get("host", "")
    if not is_own(host) and forwarded not in (ANY, host.partition(":")[0] or ANY):
        return f"this page is not at {host[:100]!r}"
    origin = headers.get("origin")
    if origin is not None and _place(origin) not in (host, host if forwarded in (None, ANY) else forwarded):
        return "this page takes no calls from other pages"
    return None


async def read_body(request: Request, most: int) -> bytes:
    """The body of a request. Raises LabError: it has more than ``most`` bytes."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise LabError(f"the page takes up to {most:,} bytes", code="body-too-large")
    return bytes(body)


def _place(origin: str) -> str:
    """The host and port of an ``Origin`` header; "" if it has none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def is_own(host: str) -> bool:
    """Whether a ``Host`` header names loopback. A foreign name that resolves to it (DNS rebinding) does not."""
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:  # neither an address nor a name of ours
        return False
