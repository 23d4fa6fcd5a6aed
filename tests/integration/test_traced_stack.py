"""``--set trace=otlp://...``: one trace holds the spans of client, Envoy (where there is one), Triton and model."""

from __future__ import annotations

import http.server
import json
import re
import threading
from collections.abc import Iterator
from typing import Any

import gpt2_streams
import pytest
import tritonclient.grpc as grpcclient
from waiting import eventually

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
# Of a span in Protobuf: trace, its own id, a state of the trace if there is one, the parent's id.
PROTOBUF = re.compile(rb"\x0a\x10(.{16})\x12\x08(.{8})(?:\x1a.*?)?\x22\x08(.{8})", re.DOTALL)
pytestmark = [pytest.mark.night, pytest.mark.xdist_group("iterative")]


class Receiver(http.server.ThreadingHTTPServer):
    """An OTLP/HTTP receiver: what Triton and our models sent, both in JSON, and Envoy in Protobuf."""

    daemon_threads = True

    def __init__(self) -> None:
        self.bodies: list[tuple[str, str, bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        length = self.headers["Content-Length"]
        body = self.rfile.read(int(length)) if length else self.chunks()
        self.server.bodies.append((self.path, self.headers["Content-Type"], body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def chunks(self) -> bytes:
        """A body in chunks, as Envoy sends it."""
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def spans(receiver: Receiver) -> dict[str, dict[str, Any]]:
    """All spans of that trace, by their ids; each with who sent it."""
    found: dict[str, dict[str, Any]] = {}
    for path, kind, body in list(receiver.bodies):
        assert path == "/v1/traces"
        if "protobuf" in kind:
            for trace, span, parent in PROTOBUF.findall(body):
                if trace.hex() == TRACE:
                    found[span.hex()] = {"parentSpanId": parent.hex(), "by": "envoy"}
            continue
        for resource in json.loads(body)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span in scope["spans"]:
                    if span["traceId"].lower() == TRACE:
                        found[span["spanId"].lower()] = {**span, "by": scope["scope"]["name"]}
    return found


def above_the_models(receiver: Receiver) -> list[str]:
    """Who sent the spans between the model's and the client's, from below; [] while one of the chain is missing."""
    every, above = spans(receiver), []
    parent = next((span["parentSpanId"].lower() for span in every.values() if span["by"] == "labserve"), "")
    while parent in every:
        above.append(every[parent]["by"])
        parent = every[parent]["parentSpanId"].lower()
    return above if parent == PARENT else []


def is_final(result: Any) -> bool:
    return bool(result.get_response().parameters["triton_final_response"].bool_param)


@pytest.mark.parametrize("front", [[], ["--replicas", "1", "--balance", "l7"]], ids=["triton", "envoy"])
def test_a_clients_trace_goes_on_in_triton_and_in_the_model(
    lab_server: Any, receiver: Receiver, front: list[str]
) -> None:
    server = lab_server("iterative", *front, trace=f"otlp://127.0.0.1:{receiver.server_address[1]}")
    client = grpcclient.InferenceServerClient(server.grpc)
    answers: list[Any] = []
    client.start_stream(
        lambda result, error: answers.append((result, error)), headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}
    )
    client.async_stream_infer(
        "simple-gpt2",
        [gpt2_streams.text_input(b"The")],
        parameters={"max_tokens": 3, "ignore_eos": True},
        enable_empty_final_response=True,
    )
    # A stream that ends before its request has ended cancels it: Triton and Envoy may then have no whole trace of it.
    eventually(lambda: any(error or is_final(result) for result, error in list(answers)))
    client.stop_stream()
    assert [error for _, error in answers if error] == []
    client.close()

    # Each sends its spans when it has some, not in their order.
    above = eventually(lambda: above_the_models(receiver))
    assert above[0] != "envoy" and ("envoy" in above) == bool(front), above
    assert above == sorted(above, key=lambda by: by == "envoy")  # Envoy stands before Triton
    (own,) = [span for span in spans(receiver).values() if span["by"] == "labserve"]
    told = {item["key"]: item["value"] for item in own["attributes"]}
    assert told["tokens"] == {"intValue": "3"}
    assert [event["name"] for event in own["events"]] == ["first token"]
    assert int(own["startTimeUnixNano"]) <= int(own["events"][0]["timeUnixNano"]) <= int(own["endTimeUnixNano"])
