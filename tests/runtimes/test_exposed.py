"""What stands before Triton under --expose: it lets everything good through, and nothing that ends the server."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import queue
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from machinery import ROOT, copy_of_the_checkout, labctl, processes_about, runtime, status, taken_down, with_faults_lab
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput, service_pb2, service_pb2_grpc
from waiting import eventually

sys.path.insert(0, str(ROOT))  # benchmarks/ is no package that anybody installs
from benchmarks.hostile import http2
from benchmarks.hostile.framing import SERVICE, pseudo
from benchmarks.hostile.messages import message

from labctl.runtimes import docker_engine
from labctl.runtimes.leftovers import ROOT as OF_CHECKOUT
from labctl.triton.server_api import is_live

STACK = "quick"
LENGTH = "Inference-Header-Content-Length"
INFER, GENERATE = "/v2/models/echo/infer", "/v2/models/echo/generate"


def text(**more: Any) -> dict[str, Any]:
    return {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"], **more}


def body(**document: Any) -> bytes:
    return json.dumps(document).encode()


CLASSIFICATION = [{"name": "text_output", "parameters": {"classification": 1}}]
CLASSIFIED = {"inputs": [text()], "outputs": CLASSIFICATION}
# Each of these ends or fills a Triton 2.51 that nothing stands before (tests/runtimes/test_deaths.py).
DEADLY: dict[str, Callable[[str], int]] = {
    "classification": lambda at: post(at, INFER, body(inputs=[text()], outputs=CLASSIFICATION)),
    "shape beyond memory": lambda at: post(at, INFER, body(inputs=[text(shape=[2**40], datatype="FP32", data=[1])])),
    "shape of 8 GB": lambda at: post(at, INFER, body(inputs=[text(shape=[1, 2**31], datatype="INT32", data=[1])])),
    "nesting": lambda at: post(at, GENERATE, b"[" * 200_000),
    "nesting elsewhere": lambda at: post(at, "/v2/repository/index", b"[" * 200_000),
    "nesting behind a length of 0": lambda at: post(at, GENERATE, b"[" * 200_000, **{LENGTH: "0"}),
    "classification behind two lengths": lambda at: bytewise(
        at, INFER, body(inputs=[text()], outputs=CLASSIFICATION), f"{LENGTH}: 0\r\n{LENGTH}: 9"
    ),
    "a million chunks": lambda at: chunked(at, INFER, 1_000_000),
    "gzip bomb": lambda at: post(at, INFER, gzip.compress(bytes(2**28)), **{"Content-Encoding": "gzip"}),
}


@pytest.fixture(scope="module", params=["local", "compose"])
def exposed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, snapshot: Path
) -> Iterator[dict[str, Any]]:
    """The endpoints of a stack with its guard; when it ends, nothing of it may be left."""
    where = request.param
    if where == "compose":
        request.getfixturevalue("images")
    root = with_faults_lab(copy_of_the_checkout(tmp_path_factory.mktemp("guard") / "own", snapshot))
    told = labctl(
        "up", STACK, "--runtime", where, "--ports", "auto", "--expose", "--timeout", "120", root=root, timeout=600
    ).stdout
    try:
        assert "Exposed: these ports listen on 0.0.0.0" in told
        if where == "compose":
            only_the_guard_is_published(root)
        assert status(root, STACK)["exposed"] == "0.0.0.0"
        assert "Exposed: these ports listen on 0.0.0.0" in labctl("status", STACK, root=root).stdout
        yield status(root, STACK)["endpoints"]
        assert status(root, STACK)["state"] == "ready"
    finally:
        taken_down(root)
        assert runtime(root, where).leftovers(STACK) == []
        assert processes_about(root) == []
        assert not [*Path("/dev/shm").glob("envoy_shared_memory*")]


def only_the_guard_is_published(root: Path) -> None:
    server, guard = (docker_engine.containers(str(root), STACK, name)[0] for name in ("triton", "guard"))
    assert not server.attrs["HostConfig"]["PortBindings"]
    host = guard.attrs["HostConfig"]
    assert sorted(host["PortBindings"]) == ["8000/tcp", "8001/tcp", "8002/tcp"]
    assert host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"] and host["SecurityOpt"] == ["no-new-privileges:true"]
    assert 0 < host["PidsLimit"] <= 512 and 0 < host["Memory"] <= 2**31
    assert not guard.attrs["Config"]["User"].startswith("0")
    assert server.attrs["HostConfig"]["Memory"] > 0


def post(endpoint: str, path: str, sent: bytes, **headers: str) -> int:
    connection = http.client.HTTPConnection(endpoint, timeout=60)
    try:
        connection.request("POST", path, sent, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def chunked(endpoint: str, path: str, count: int) -> int:
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(count // 1000):
            connection.sendall(b"1\r\n[\r\n" * 1000)
        connection.sendall(b"0\r\n\r\n")
        return int(connection.recv(100).split()[1])


def bytewise(endpoint: str, path: str, sent: bytes, headers: str) -> int:
    """A request with headers that no library sends."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(sent)}\r\n{headers}\r\n\r\n"
        connection.sendall(head.encode() + sent)
        return int(connection.recv(100).split()[1])


def called(endpoint: str, path: str, headers: list[tuple[str, str]], sent: bytes) -> tuple[int, bytes]:
    """A call on the gRPC port with headers that no library sends: status and body of the answer."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(http2.call([*pseudo(path, "POST"), ("te", "trailers"), *headers], [http2.message(sent)]))
        return http2.reply(connection)


def request(outputs: bool = False) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name="echo")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(b"hello")
    if outputs:
        made.outputs.add(name="text_output").parameters["classification"].int64_param = 1
    return made


@pytest.mark.parametrize("name", DEADLY)
def test_fault_33_what_would_end_triton_is_refused_and_it_lives(exposed: dict[str, str], name: str) -> None:
    assert DEADLY[name](exposed["http"]) in (400, 413)
    assert is_live(exposed["http"])


def test_classification_is_refused_over_grpc_in_words(exposed: dict[str, str]) -> None:
    with grpc.insecure_channel(exposed["grpc"]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.ModelInfer(request(outputs=True), timeout=30)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "classification" in refused.value.details()
        assert stub.ModelInfer(request(), timeout=30).model_name == "echo"


MODEL_INFER = f"{SERVICE}ModelInfer"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("content-type", "application/json")],
        [("content-type", "application/grpc, text/plain")],
        [(LENGTH.lower(), "0")],
        [("content-type", "application/grpc"), (LENGTH.lower(), "0")],
        [("content-type", "application/grpc"), ("content-encoding", "gzip")],
    ],
    ids=str,
)
def test_fault_41_a_call_that_only_triton_would_take_for_grpc_is_refused(
    exposed: dict[str, str], headers: list[tuple[str, str]]
) -> None:
    for asked in ({"inputs": [text()]}, CLASSIFIED):
        status, answer = called(exposed["grpc"], MODEL_INFER, headers, message("echo", asked))
        assert status == 415 or (status, answer) == (200, b"")  # gRPC's own refusals have no body
    assert is_live(exposed["http"])
    good = called(
        exposed["grpc"], MODEL_INFER, [("content-type", "application/grpc")], message("echo", {"inputs": [text()]})
    )
    assert good[0] == 200 and b"hello" in good[1]


def test_a_deadline_stays_with_the_client_and_never_reaches_triton(exposed: dict[str, str]) -> None:
    """Some hundred calls with a deadline that is over before Triton has taken them end Triton 2.51."""
    headers = [("content-type", "application/grpc"), ("grpc-timeout", "1n")]
    for _ in range(50):
        status, answer = called(exposed["grpc"], MODEL_INFER, headers, message("echo", {"inputs": [text()]}))
        assert status == 200 and b"hello" in answer
    assert is_live(exposed["http"])


def test_a_message_on_the_port_for_http_is_refused(exposed: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(exposed["http"], timeout=60)
    connection.request("POST", INFER, message("echo", CLASSIFIED), {"Content-Type": "application/grpc"})
    answer = connection.getresponse()
    assert "gRPC has a port of its own" in str(answer.getheader("grpc-message"))  # Envoy refuses gRPC in gRPC's words
    connection.close()


def test_fault_41_a_length_is_honoured_on_the_one_route_where_triton_honours_it(exposed: dict[str, str]) -> None:
    header, tensor = body(inputs=[text(data=None, parameters={"binary_data_size": 9})]), b"\5\0\0\0hello"
    header = header.replace(b', "data": null', b"")
    assert post(exposed["http"], INFER, header + tensor, **{LENGTH: str(len(header))}) == 200
    assert post(exposed["http"], GENERATE, body(text_input="hello"), **{LENGTH: "0"}) == 400


@pytest.mark.parametrize("path", ["/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/v2/nothing"])
def test_a_route_that_the_guard_does_not_open_is_refused(exposed: dict[str, str], path: str) -> None:
    assert post(exposed["http"], path, b"{}") == 403
    headers = [("content-type", "application/grpc")]
    assert called(exposed["grpc"], f"{SERVICE}LogSettings", headers, b"") == (200, b"")
    assert called(exposed["grpc"], f"{SERVICE}{path}", headers, b"") == (200, b"")


def test_no_body_reaches_the_server_of_the_counters(exposed: dict[str, str]) -> None:
    connection = http.client.HTTPConnection(exposed["metrics"], timeout=30)
    connection.request("GET", "/metrics", b"x" * 1000)
    assert connection.getresponse().status == 413
    connection.close()


def test_a_sequence_id_longer_than_triton_takes_is_refused(exposed: dict[str, str]) -> None:
    sent = body(inputs=[text()], parameters={"sequence_id": "x" * 2**20, "sequence_start": True})
    assert post(exposed["http"], INFER, sent) == 400
    assert is_live(exposed["http"])


def test_a_prompt_that_holds_the_word_is_served(exposed: dict[str, str]) -> None:
    prompt = '{"outputs": [{"name": "text_output", "parameters": {"classification": 1}}]}'
    assert post(exposed["http"], INFER, body(inputs=[text(data=[prompt])])) == 200
    assert post(exposed["http"], GENERATE, body(text_input=prompt)) == 200


def test_a_body_in_gzip_and_a_large_tensor_pass_unchanged(exposed: dict[str, str]) -> None:
    packed = gzip.compress(body(inputs=[text()]))
    assert post(exposed["http"], INFER, packed, **{"Content-Encoding": "gzip"}) == 200
    words = np.array([["hello " * 200_000]], dtype=object)
    tensor = InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(words)
    with InferenceServerClient(exposed["grpc"]) as client:
        for compression in (None, "gzip"):
            answer = client.infer("echo", [tensor], compression_algorithm=compression, client_timeout=60)
            assert answer.as_numpy("text_output")[0][0].decode() == words[0][0]


def test_an_answer_comes_while_the_request_stream_is_open(exposed: dict[str, str]) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    tensor = InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([["hello"]], dtype=object))
    with InferenceServerClient(exposed["grpc"]) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for _ in range(3):  # the stream is not closed between them
            client.async_stream_infer("echo", [tensor])
            result, error = answers.get(timeout=30)
            assert error is None and result.as_numpy("text_output")[0][0] == b"hello"
        wanted = [InferRequestedOutput("text_output", class_count=1)]
        client.async_stream_infer("echo", [tensor], outputs=wanted)
        assert answers.get(timeout=30)[1] is not None
    assert is_live(exposed["http"])


def test_only_the_counters_are_on_the_port_for_metrics(exposed: dict[str, str]) -> None:
    assert post(exposed["metrics"], "/metrics", b"") == 404
    connection = http.client.HTTPConnection(exposed["metrics"], timeout=30)
    connection.request("GET", "/metrics")
    assert b"nv_inference_count" in connection.getresponse().read()
    connection.close()


KILL = """
import os, pathlib, sys
for found in pathlib.Path("/proc").glob("[0-9]*/comm"):
    if found.read_text().strip() == sys.argv[1]:
        os.kill(int(found.parent.name), 9)
"""


def kill(root: Path, where: str, part: str) -> None:
    """Kill one process of the guard."""
    if where == "compose":
        docker_engine.containers(str(root), STACK, "guard")[0].exec_run(["python", "-c", KILL, part])
        return
    for process in psutil.process_iter(["name"]):
        with contextlib.suppress(psutil.Error):
            if process.info["name"] == part and process.environ().get(OF_CHECKOUT) == str(root):
                process.kill()


@pytest.mark.parametrize("part", ["envoy", "labs-judge"])
def test_without_a_part_of_its_guard_a_stack_serves_nobody_and_is_degraded(own: Path, where: str, part: str) -> None:
    labctl("up", STACK, "--runtime", where, "--ports", "auto", "--expose", root=own, timeout=600)
    endpoint = status(own, STACK)["endpoints"]["http"]
    kill(own, where, part)
    shown = eventually(lambda: found if (found := status(own, STACK))["state"] == "degraded" else None)
    assert shown["ended"].startswith("its guard: ")
    with contextlib.suppress(OSError, http.client.HTTPException):  # nobody listens any more
        assert post(endpoint, INFER, body(inputs=[text()])) == 500
    told = labctl("status", STACK, root=own, check=False).stdout
    assert "Nothing reaches the server" in told and "labctl down, labctl up" in told
    again = labctl("up", STACK, "--runtime", where, "--expose", root=own, check=False)
    assert again.returncode == 1 and "its guard" in again.stderr and f"labctl down {STACK}" in again.stderr
