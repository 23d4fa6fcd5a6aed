"""``--set trace=otlp://...``: one trace holds the client's span, Triton's and the model's own."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import gpt2_streams
import pytest
import tritonclient.grpc as grpcclient
from machinery import eventually

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
pytestmark = pytest.mark.xdist_group("iterative")


class Receiver(http.server.ThreadingHTTPServer):
    """An OTLP/HTTP receiver: what Triton and our models sent, both in JSON."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[tuple[str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.bodies.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def spans(receiver: Receiver) -> dict[str, dict[str, Any]]:
    """All spans of that trace, by their ids; each with who sent it."""
    found = {}
    for path, body in list(receiver.bodies):
        assert path == "/v1/traces"
        for resource in json.loads(body)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    if span["traceId"].lower() == TRACE:
                        found[span["spanId"].lower()] = {**span, "by": scope["scope"]["name"]}
    return found


def above_the_models(receiver: Receiver) -> int:
    """How many spans of Triton's lie between the model's and the client's; 0 while one of the chain is missing."""
    every, above = spans(receiver), 0
    parent = next((span["parentSpanId"].lower() for span in every.values() if span["by"] == "labserve"), "")
    while parent in every:
        above, parent = above + 1, every[parent]["parentSpanId"].lower()
    return above if parent == PARENT else 0


def test_a_clients_trace_goes_on_in_triton_and_in_the_model(lab_server: Any, receiver: Receiver) -> None:
    server = lab_server("iterative", trace=f"otlp://127.0.0.1:{receiver.server_address[1]}")
    client = grpcclient.InferenceServerClient(server.grpc)
    answers: list[Any] = []
    client.start_stream(lambda result, error: answers.append((result, error)),
                        headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})  # fmt: skip
    client.async_stream_infer("simple-gpt2", [gpt2_streams.text_input(b"The")],
                              parameters={"max_tokens": 3, "ignore_eos": True})  # fmt: skip
    eventually(lambda: len(answers) >= 3)
    client.stop_stream()
    client.close()

    eventually(lambda: above_the_models(receiver) >= 1)  # Triton sends its spans when it has some, not in their order
    (own,) = [span for span in spans(receiver).values() if span["by"] == "labserve"]
    told = {item["key"]: item["value"] for item in own["attributes"]}
    assert told["tokens"] == {"intValue": "3"}
    assert [event["name"] for event in own["events"]] == ["first token"]
    assert int(own["startTimeUnixNano"]) <= int(own["events"][0]["timeUnixNano"]) <= int(own["endTimeUnixNano"])
