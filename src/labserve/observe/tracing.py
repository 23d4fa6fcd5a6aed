"""A request's time inside a model as a span of its client's trace, sent to an OTLP/HTTP receiver as JSON.

Triton (in its OpenTelemetry mode) has a span for each model that a request goes through; where a model answers outside
of `execute`, that span is over at once. The environment's LABS_TRACE is the receiver's address; without it there is no
`Tracer`.
"""

import contextlib
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections import deque
from typing import Any

from labserve.observe.periodic import PeriodicCall

MOST_WAITING = 2048  # spans that were not sent yet; what is more is lost
TIMEOUT_S = 2.0
SEND_S = 0.25
INTERNAL = 1  # kind of span


class Tracer:
    """Spans of requests that have ended, sent four times a second by a thread of its own: a receiver may be away.

    One thread appends them, and the thread that sends takes them from the left.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._url = os.environ["LABS_TRACE"]
        self._ended: deque[dict[str, Any]] = deque()
        self.sending = PeriodicCall(SEND_S, self.send)

    def context(self, request: Any) -> str | None:
        """The context that Triton gives, as W3C's header: "00-<trace>-<span>-<flags>"; None: not traced."""
        with contextlib.suppress(Exception):  # an older Triton has no such function, an untraced request no context
            return str(json.loads(request.trace().get_context())["traceparent"])
        return None

    def end(self, name: str, context: str | None, arrived: float, first: float | None, tokens: int) -> None:
        """The request has left; harmless for one that is not traced.

        Args:
            context: as the method of that name gives it.
            arrived, first: when it came, and its first token did (None: it has none), in monotonic seconds.
        """
        parts = (context or "").split("-")
        if len(parts) != 4 or len(self._ended) >= MOST_WAITING:
            return
        since_epoch = time.time() - time.monotonic()
        moments = [str(round((since_epoch + moment) * 1e9)) for moment in (arrived, first or arrived, time.monotonic())]
        self._ended.append(
            {
                "traceId": parts[1],
                "spanId": secrets.token_hex(8),
                "parentSpanId": parts[2],
                "name": f"scheduled {self._model}",
                "kind": INTERNAL,
                "startTimeUnixNano": moments[0],
                "endTimeUnixNano": moments[2],
                "attributes": [_attribute("request", name), {"key": "tokens", "value": {"intValue": str(tokens)}}],
                "events": [{"timeUnixNano": moments[1], "name": "first token"}] if first else [],
            }
        )

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

    def close(self) -> None:
        """Send what is left; the model is being unloaded."""
        self.sending.close()
        self.send()


def _attribute(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}
