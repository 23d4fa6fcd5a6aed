"""Whatever answers in Triton's place: a command ends with it or with a sentence, in time and in bounded memory."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lab_errors import lab_error
from tritonclient.grpc import service_pb2
from waiting import DEADLINE_S

from labctl.cli import metrics as metrics_command
from labctl.learn.classroom import Classroom
from labctl.triton import conversation, server_api
from labctl.triton.server_api import Unreachable
from labctl.workspace import Workspace
from labkit import fetch
from labkit.client import metrics
from labkit.disk import atomic_write
from labkit.errors import LabError
from labsched.printable import printable

Answer = Callable[[socket.socket], None]
OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@contextlib.contextmanager
def answering(answer: Answer) -> Iterator[str]:
    """The endpoint of a server that does that with each connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.recv(65_536)
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def forever(*parts: bytes, pause: float = 0.0) -> Answer:
    """The parts, the last of them again and again."""

    def answer(connection: socket.socket) -> None:
        for part in parts[:-1]:
            connection.sendall(part)
        while True:
            connection.sendall(parts[-1])
            time.sleep(pause)

    return answer


ENDLESS = {
    "head": forever(b"HTTP/1.1 200 OK\r\n", b"X: " + b"y" * 60_000 + b"\r\n"),
    "body": forever(OK + b"\r\n", b"[1," * 20_000),
    "chunks": forever(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"4\r\n[[[[\r\n" * 5_000),
    "drip of the head": forever(b"H", b"T", pause=0.02),
    "drip of the body": forever(OK + b"Content-Length: 100000\r\n\r\n", b" ", pause=0.02),
    "silence": lambda connection: connection.recv(1) and None,
    "promise": lambda connection: connection.sendall(OK + b"Content-Length: 99999999999999\r\n\r\n["),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_answer_that_does_not_end_is_given_up(kind: str) -> None:
    with answering(ENDLESS[kind]) as endpoint:
        with pytest.raises(Unreachable):
            server_api.call_triton(endpoint, "GET", "/v2", timeout=0.5)
        with lab_error("metrics-silent"):
            metrics.metrics_page(endpoint, timeout=0.5)


@pytest.mark.parametrize("words", [b"HTTP/1.1 404 Not Found\r\n\r\n", b"SSH-2.0-OpenSSH\r\n"])
def test_another_program_on_the_port_of_a_class_counts_as_no_jupyterhub(tmp_path: Path, words: bytes) -> None:
    session: Any = SimpleNamespace(workspace=Workspace(tmp_path, tmp_path / "cache"))
    classroom = Classroom(session)
    with answering(lambda connection: connection.sendall(words)) as endpoint:
        atomic_write(classroom.room.path / "address", f"http://{endpoint}")
        assert not classroom.answers()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["\x1b[31m", "READY"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "state", "version", "reason", "error"]) | st.text(max_size=2), inner)
    ),
    max_leaves=6,
)
BODIES = st.one_of(
    st.binary(max_size=60),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.just(b"[" * 200_000),
    st.just(b"{" * 9),
)
LINES = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(
            [
                'nv_inference_count{model="m",version="1"} 1',
                'nv_inference_count{model="\x1b[31m",version="1"} nan',
                "x{",
                "labs_steps_total{} 1",
                'nv_inference_request_summary_us{model="m",quantile="x"} 1',
                "# TYPE x histogram",
                'x_bucket{model="m",le="?"} 1',
                "nv_inference_count 1e999",
            ]
        ),
    ),
    max_size=6,
).map("\n".join)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(status=st.sampled_from([b"200 OK", b"302 Found", b"500 No", b"999 x", b"abc"]), body=BODIES)
def test_any_body_is_read_or_is_no_tritons(status: bytes, body: bytes) -> None:
    answer = b"HTTP/1.1 " + status + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with answering(lambda connection: connection.sendall(answer)) as endpoint:
        with contextlib.suppress(Unreachable):
            assert all(isinstance(row.name, str) for row in server_api.model_states(endpoint))
        assert isinstance(server_api.server_version(endpoint), str | None)
        with contextlib.suppress(LabError):
            assert isinstance(server_api.model_config(endpoint, "m"), dict)
        with contextlib.suppress(LabError):
            server_api.load_model(endpoint, "m", 5.0)


@settings(max_examples=80, suppress_health_check=list(HealthCheck))
@given(page=LINES)
def test_any_metrics_page_is_read_or_refused_and_shown_without_escapes(page: str) -> None:
    body = page.encode("utf-8", "replace")
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with answering(lambda connection: connection.sendall(answer)) as endpoint, contextlib.suppress(LabError):
        shown = printable(metrics_command.describe_snapshot(metrics.scrape(endpoint)))
        assert "\x1b" not in shown


def test_an_answer_within_the_limit_is_whole() -> None:
    body = os.urandom(300_000)
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with answering(lambda connection: connection.sendall(answer)) as endpoint:
        assert fetch.fetch(endpoint, "GET", "/", timeout=DEADLINE_S) == (200, body)
        with pytest.raises(fetch.TooLarge):
            fetch.fetch(endpoint, "GET", "/", timeout=DEADLINE_S, most=200_000)


CONFIG = service_pb2.ModelConfigResponse()
CONFIG.config.name = "m"
CONFIG.config.model_transaction_policy.decoupled = True
CONFIG.config.input.add(name="text_input", data_type=13, dims=[1])
CONFIG.config.output.add(name="text_output", data_type=13, dims=[1])


@pytest.fixture
def grpc_server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server of one decoupled text model; ``pieces`` is what it streams, ``final`` whether it ends well."""
    mode: dict[str, Any] = {"pieces": [], "final": True}

    def stream(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[bytes]:
        request = service_pb2.ModelInferRequest.FromString(next(requests))
        for piece in mode["pieces"]:
            yield response(request.id, piece, False)
        if mode["final"]:
            yield response(request.id, b"", True)

    def response(name: str, raw: bytes, last: bool) -> bytes:
        made = service_pb2.ModelInferResponse(model_name="m", id=name)
        if raw:
            made.outputs.add(name="text_output", datatype="BYTES", shape=[1, 1])
            made.raw_output_contents.append(raw)
        made.parameters["triton_final_response"].bool_param = last
        return service_pb2.ModelStreamInferResponse(infer_response=made).SerializeToString()

    handlers = {
        "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(stream),
        "ModelConfig": grpc.unary_unary_rpc_method_handler(lambda request, context: CONFIG.SerializeToString()),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", mode
    server.stop(0)


def text(value: bytes) -> bytes:
    return struct.pack("<I", len(value)) + value


@pytest.mark.parametrize("stream", [True, False])
def test_an_infer_ends_whatever_the_stream_does(
    grpc_server: tuple[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    endpoint, mode = grpc_server
    monkeypatch.setattr(conversation, "TIMEOUT_S", DEADLINE_S)

    def generated() -> str:
        return "".join(conversation.generate(endpoint, "m", "Hi", 4, stream))

    mode["pieces"] = [text(b" a"), text(b" b")]
    assert generated() == "Hi a b"
    mode["final"] = False  # the stream ends, and the request has no answer
    with lab_error("connection-broken"):
        generated()
    mode["pieces"] = iter(lambda: text(b" word"), None)  # without end
    with lab_error("model-error") as endless:
        generated()
    assert "does not end" in str(endless.value)
    mode["pieces"], mode["final"] = [b"\xff\xff"], True  # no tensor of texts
    with lab_error("model-error") as unread:
        generated()
    assert "cannot be read" in str(unread.value)
