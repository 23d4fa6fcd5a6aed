"""A request's time inside a model as a span of its client's trace, sent to an OTLP/HTTP receiver as JSON.

Triton (in its OpenTelemetry mode) has a span for each model that a request goes through; where a model answers outside
of `execute`, that span is over at once. The environment's LABS_TRACE is the receiver's address; without it nothing is
traced.
"""

import contextlib
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass, field
from typing import Any

MOST_WAITING = 2048  # spans that were not sent yet; what is more is lost
TIMEOUT_S = 2.0
INTERNAL = 1  # kind of span


@dataclass(slots=True)
class _Span:
    """A request in the model: when it came, when its first token did. Times are nanoseconds since the epoch."""

    trace: str
    parent: str
    name: str
    began: int = field(default_factory=time.time_ns)
    first: int = 0
    tokens: int = 0


class Tracer:
    """Spans by the names of live requests; `send` sends the spans of ended requests.

    The model's threads own the live ones and append the ended ones; the thread that sends takes them from the left.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._url = os.environ.get("LABS_TRACE", "")
        self._live: dict[str, _Span] = {}
        self._ended: deque[dict[str, Any]] = deque()

    def context(self, request: Any) -> str:
        """The trace context of Triton's request; "": it is not traced."""
        return _traceparent(request) if self._url else ""

    def begin(self, name: str, context: str) -> None:
        """The request has come; it is traced if it has a context."""
        parts = context.split("-")
        if len(parts) == 4:
            self._live[name] = _Span(parts[1], parts[2], name)

    @property
    def traces(self) -> bool:
        """Whether a request that is here is traced."""
        return bool(self._live)

    def token(self, name: str, count: int) -> None:
        if count and (span := self._live.get(name)):
            span.first = span.first or time.time_ns()
            span.tokens += count

    def end(self, name: str) -> None:
        """The request has left; harmless for one that is not traced."""
        if (span := self._live.pop(name, None)) and len(self._ended) < MOST_WAITING:
            self._ended.append(self._document(span))

    def send(self) -> None:
        """Send the spans that have ended. If the receiver cannot be reached, they are sent with the next ones."""
        if not self._ended:
            return
        spans = [self._ended.popleft() for _ in range(len(self._ended))]
        resource = {"attributes": [_attribute("service.name", f"labs-{self._model}")]}
        scope = {"scope": {"name": "labserve"}, "spans": spans}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}
        export = urllib.request.Request(self._url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(export, timeout=TIMEOUT_S):
                pass
        except urllib.error.HTTPError:  # the receiver answered, and would refuse them again
            pass
        except OSError:
            self._ended.extendleft(reversed(spans[: max(0, MOST_WAITING - len(self._ended))]))

    def _document(self, span: _Span) -> dict[str, Any]:
        return {
            "traceId": span.trace,
            "spanId": secrets.token_hex(8),
            "parentSpanId": span.parent,
            "name": f"scheduled {self._model}",
            "kind": INTERNAL,
            "startTimeUnixNano": str(span.began),
            "endTimeUnixNano": str(time.time_ns()),
            "attributes": [
                _attribute("request", span.name),
                {"key": "tokens", "value": {"intValue": str(span.tokens)}},
            ],
            "events": [{"timeUnixNano": str(span.first), "name": "first token"}] if span.first else [],
        }


def _traceparent(request: Any) -> str:
    """The context that Triton gives, as W3C's header: "00-<trace>-<span>-<flags>"; "" if it traces nothing."""
    with contextlib.suppress(Exception):  # an older Triton has no such function, an untraced request no context
        return str(json.loads(request.trace().get_context())["traceparent"])
    return ""


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}
