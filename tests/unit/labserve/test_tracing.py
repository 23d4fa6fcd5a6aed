"""Traces: where they are sent, and what a model adds to those of its clients."""

from __future__ import annotations

import contextlib
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest
from lab_errors import lab_error

from labctl.triton.arguments import receiver
from labserve.observe.gauges import Gauges
from labserve.observe.tracing import Tracer


@pytest.mark.parametrize(
    ("asked", "url"),
    [
        ("", None),
        ("otlp://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("otlp://collector", "http://collector:4318/v1/traces"),
        ("otlp://collector:80/own/path/", "http://collector:80/own/path"),
        ("otlp://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_a_receiver_is_a_host_and_a_port(asked: str, url: str | None) -> None:
    assert receiver(asked) == url


@pytest.mark.parametrize(
    "asked", ["127.0.0.1:4318", "http://127.0.0.1:4318", "otlp://:4318", "otlp://h:x", "otlp://h:0", "otlp://u@h:1"]
)
def test_anything_else_is_refused_with_an_example(asked: str) -> None:
    with lab_error("trace-receiver-invalid"):
        receiver(asked)


def request(context: str) -> Any:
    return SimpleNamespace(trace=lambda: SimpleNamespace(get_context=lambda: context))


@pytest.fixture
def sent(by_hand: None, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What reaches a receiver that cannot be reached at first."""
    bodies: list[dict[str, Any]] = []
    failures: list[Exception] = [OSError("the connection is refused")]

    def take(asked: Any, timeout: float) -> Any:
        if failures:
            raise failures.pop()
        bodies.append(json.loads(asked.data))
        return contextlib.nullcontext()

    monkeypatch.setenv("LABS_TRACE", "http://127.0.0.1:1/v1/traces")
    monkeypatch.setattr("labserve.observe.tracing.urllib.request.urlopen", take)
    return bodies


def test_a_request_is_a_span_below_tritons_and_is_sent_once_the_receiver_can_be_reached(
    sent: list[dict[str, Any]],
) -> None:
    shown = Gauges("m")
    tracer = shown._tracer
    assert tracer
    asked = request(json.dumps({"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}))
    shown.arrived("7", shown.life(asked, time.monotonic()))
    for _ in range(3):
        shown.step(["7"], "d", [1], [2])
    tracer.send()
    assert sent == [], "it has not ended"
    shown.gone("7")
    shown.gone("7")
    tracer.send()
    assert sent == [], "the receiver was away"
    tracer.send()
    tracer.send()
    (body,) = sent
    (span,) = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
    assert (span["traceId"], span["parentSpanId"]) == ("a" * 32, "b" * 16)
    assert {"key": "tokens", "value": {"intValue": "6"}} in span["attributes"]
    assert len(span["events"]) == 1


@pytest.mark.parametrize("context", ["", "null", "{}", "no JSON"])
def test_a_request_that_triton_does_not_trace_is_none_of_ours(sent: list[dict[str, Any]], context: str) -> None:
    tracer = Tracer("m")
    tracer.end("7", tracer.context(request(context)), 1.0, 2.0, 1)
    tracer.send()
    assert sent == []


def test_without_a_receiver_triton_is_not_even_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABS_TRACE", raising=False)
    assert Gauges("m").life(SimpleNamespace(), 0.0).trace is None
