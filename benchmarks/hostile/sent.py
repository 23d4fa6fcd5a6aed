"""One request to a server, good or bad, ready to be sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.hostile.models import Model

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Sent:
    """HTTP: method, path, headers and body; gRPC: the call and its messages, as bodies of ``infer`` or as bytes.

    Attributes:
        kind: what is wrong with it.
        protocol: ``http``, ``grpc`` (one call) or ``stream`` (gRPC, all messages in one stream); ``http1`` and ``h2``
            are connections on which ``body`` is sent byte by byte.
        port: ``http`` or ``grpc``, for the last two.
        deadly: it is known to end Triton 2.51 when nothing stands before it (docs/operate/security.md).
        loses: so it is known to leave itself, or another of its sequence id, without an answer.
        chunked: the body goes in pieces of this many bytes.
        leave: seconds after which the client goes away without waiting for the end; None waits.
    """

    kind: str
    model: str
    protocol: str = "http"
    port: str = "http"
    method: str = "POST"
    path: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    messages: Sequence[Any] = ()
    compression: str = ""
    chunked: int = 0
    deadly: bool = False
    loses: bool = False
    leave: float | None = None

    def __str__(self) -> str:
        what = self.body[:300] or str(self.messages)[:300]
        return f"{self.kind} {self.protocol} {self.model} {self.path} {what!r}"


def infer(model: Model, body: Any, kind: str, **more: Any) -> Sent:
    """A request over HTTP; ``body`` is a document or bytes. ``headers`` of ``more`` are added."""
    headers = JSON | more.pop("headers", {})
    return Sent(kind, model.name, path=f"/v2/models/{model.name}/infer", headers=headers, body=encoded(body), **more)


def encoded(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()
