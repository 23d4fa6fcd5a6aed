"""A stack that other machines reach: Envoy asks for its token before Triton, and opens a list of routes with it."""

from __future__ import annotations

import gzip
import http.client
import json
import queue
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import requests
from machinery import copy_of_the_checkout, labctl, processes_about, runtime, status, taken_down, with_faults_lab
from tritonclient import grpc as over_grpc
from tritonclient import http as over_http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import eventually

from labctl.runtimes import docker_engine
from labctl.runtimes.envoy.config import INNER_PORTS, PUBLISHED_PORTS
from labctl.runtimes.leftovers import ROOT as OF_CHECKOUT
from labctl.runtimes.leftovers import SERVER
from labctl.triton.server_api import is_live

STACK = "quick"
SERVICE = "/inference.GRPCInferenceService/"
INFER, GENERATE = "/v2/models/echo/infer", "/v2/models/echo/generate"
GOOD = {"text_input": "hello"}
MB = 2**20
ENDS_TRITON = {
    "inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"]}],
    "outputs": [{"name": "text_output", "parameters": {"classification": 1}}],
}


@dataclass(frozen=True)
class Exposed:
    """A stack that is up: where other machines reach it, and its token."""

    root: Path
    where: str
    said: str
    http: str
    grpc: str
    metrics: str
    token: str

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}

    def post(self, path: str, body: Any, **headers: str) -> requests.Response:
        data = body if isinstance(body, bytes) else json.dumps(body)
        return requests.post(f"http://{self.http}{path}", data, headers={**self.bearer, **headers}, timeout=60)


def exposed_stack(root: Path, where: str, *more: str) -> Exposed:
    words = ("--runtime", where, "--ports", "auto", "--expose", "--timeout", "120", "-v", *more)
    done = labctl("up", STACK, *words, root=root, timeout=600)
    token = labctl("status", STACK, "--token", root=root).stdout.strip()
    # An address of this machine that is not the one on which its own clients need no token.
    places = {name: at.replace("0.0.0.0", "127.0.0.2") for name, at in status(root, STACK)["published"].items()}
    return Exposed(root, where, done.stdout + done.stderr, **places, token=token)


@pytest.fixture(scope="module", params=["local", "compose"])
def exposed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, snapshot: Path
) -> Iterator[Exposed]:
    """When it ends, nothing of it may be left."""
    where = request.param
    if where == "compose":
        request.getfixturevalue("images")
    root = with_faults_lab(copy_of_the_checkout(tmp_path_factory.mktemp("exposed") / "own", snapshot))
    try:
        yield exposed_stack(root, where)
        assert status(root, STACK)["state"] == "ready"
    finally:
        taken_down(root)
        assert runtime(root, where).leftovers(STACK) == []
        assert processes_about(root) == []
        assert not (root / ".labs" / STACK / "token").exists()


def begun(endpoint: str, path: str, *headers: str) -> tuple[int, bytes]:
    """The answer to a request of which only the head is sent."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall("\r\n".join([f"POST {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read()


WRONG = [
    "",
    "Authorization: Bearer wrong",
    "Authorization: {token}",
    "Authorization: Basic {token}",
    "X-Token: {token}",
]
WRONG += ["Authorization: Bearer {token}x", "Authorization: Bearer {token}\r\nAuthorization: Bearer wrong"]


@pytest.mark.parametrize("header", WRONG)
@pytest.mark.parametrize("length", ["Content-Length: 1000000000", "Transfer-Encoding: chunked"])
def test_without_the_token_http_is_refused_before_a_byte_of_the_body_is_read(
    exposed: Exposed, header: str, length: str
) -> None:
    headers = [line for line in header.format(token=exposed.token).split("\r\n") if line]
    for endpoint, path in ((exposed.http, INFER), (exposed.http, "/v2/nothing"), (exposed.metrics, "/metrics")):
        code, body = begun(endpoint, path, length, *headers)
        assert code == 401
        assert "labctl status STACK --token" in json.loads(body)["error"]


@pytest.mark.parametrize("method", ["ServerLive", "ModelMetadata", "ModelInfer", "ModelStreamInfer", "RepositoryIndex"])
@pytest.mark.parametrize("sent", [[], [("authorization", "Bearer wrong")]], ids=["missing", "wrong"])
def test_without_the_token_a_grpc_call_is_refused_before_its_first_message(
    exposed: Exposed, method: str, sent: list[tuple[str, str]]
) -> None:
    never: queue.Queue[bytes | None] = queue.Queue()
    with grpc.insecure_channel(exposed.grpc) as channel:
        call = channel.stream_stream(SERVICE + method)(iter(never.get, None), timeout=60, metadata=sent)
        with pytest.raises(grpc.RpcError) as refused:
            next(call)
        never.put(None)
    told: Any = refused.value
    assert told.code() == grpc.StatusCode.UNAUTHENTICATED
    assert "labctl status STACK --token" in told.details()


def largest(exposed: Exposed) -> int:
    """Bytes of memory of the largest process of the server."""
    if exposed.where == "compose":
        (container,) = docker_engine.containers(str(exposed.root), STACK, "triton")
        return docker_engine.largest_process_bytes(container)
    sizes = []
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.info["name"] == SERVER and process.environ().get(OF_CHECKOUT) == str(exposed.root):
                sizes.append(process.memory_info().rss)
    return max(sizes)


def test_a_strangers_bombs_fill_neither_triton_nor_anything_before_it(exposed: Exposed) -> None:
    """A gzip message to a method whose answer is tiny, and nested lists as gzip bodies, several at once."""
    before = largest(exposed)
    lists = gzip.compress(b"[" + b"[]," * (4 * MB) + b"[]]")

    def call(method: str) -> Any:
        with grpc.insecure_channel(exposed.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                channel.unary_unary(SERVICE + method)(bytes(256 * MB), timeout=300, compression=grpc.Compression.Gzip)
            told: Any = refused.value
            return told.code()

    def post(_: int) -> int:
        stranger = {"authorization": "", "Content-Encoding": "gzip"}
        return exposed.post(INFER, lists, **stranger).status_code

    with ThreadPoolExecutor(4) as pool:
        codes = [*pool.map(call, ["ServerLive", "ModelMetadata"])]
        assert set(pool.map(post, range(6))) == {401}
    assert set(codes) == {grpc.StatusCode.UNAUTHENTICATED}
    assert largest(exposed) - before < 64 * MB
    assert exposed.post(GENERATE, GOOD).ok


def test_with_the_token_what_is_listed_is_open(exposed: Exposed) -> None:
    for path in ("", "/health/live", "/health/ready", "/models/stats", "/models/echo", "/models/echo/versions/1/ready"):
        assert requests.get(f"http://{exposed.http}/v2{path}", headers=exposed.bearer, timeout=60).ok, path
    assert exposed.post(GENERATE, GOOD).json()["text_output"] == "hello"
    counters = requests.get(f"http://{exposed.metrics}/metrics", headers=exposed.bearer, timeout=60)
    assert "nv_inference_count" in counters.text


def queued(client: over_grpc.InferenceServerClient, tensor: Any, headers: Any) -> Any:
    results: queue.Queue[Any] = queue.Queue()
    client.async_infer("echo", [tensor], lambda result, error: results.put(result or error), headers=headers)
    return results.get(timeout=60)


@pytest.mark.parametrize("module", [over_http, over_grpc], ids=["http", "grpc"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["infer", "async_infer"])
def test_tritonclient_infers_with_headers_and_with_a_plugin(exposed: Exposed, module: Any, asynchronous: bool) -> None:
    class Token(module.InferenceServerClientPlugin):
        def __call__(self, request: Any) -> None:
            request.headers.update(exposed.bearer)

    tensor = module.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([["hello " * 100_000]], dtype=object))
    endpoint = exposed.http if module is over_http else exposed.grpc
    for plugin in (False, True):
        with module.InferenceServerClient(endpoint) as client:
            headers = None if plugin else exposed.bearer
            if plugin:
                client.register_plugin(Token())
            if not asynchronous:
                answer = client.infer("echo", [tensor], headers=headers)
            elif module is over_http:
                answer = client.async_infer("echo", [tensor], headers=headers).get_result()
            else:
                answer = queued(client, tensor, headers)
            assert answer.as_numpy("text_output")[0][0].decode() == "hello " * 100_000


CLOSED = {
    "/v2/repository/index": {},
    "/v2/repository/models/echo/load": {},
    "/v2/repository/models/echo/unload": {},
    "/v2/logging": {"log_info": False},
    "/v2/trace/setting": {"trace_file": "/tmp/trace"},
    "/v2/models/echo/trace/setting": {"trace_file": "/tmp/trace"},
    "/v2/systemsharedmemory/region/mine/register": {"key": "/labs-region", "offset": 0, "byte_size": 64},
    "/v2/cudasharedmemory/status": {},
    "/v2/models/echo/%69nfer/../../../logging": {},
    "/v2/models/echo%2fgenerate": {},
    "/v2/nothing": {},
}


@pytest.mark.parametrize("path", CLOSED)
def test_what_writes_to_triton_stays_closed_over_http_with_the_token(exposed: Exposed, path: str) -> None:
    connection = http.client.HTTPConnection(exposed.http, timeout=60)  # which sends the path as it is
    for method in ("POST", "GET"):
        connection.request(method, path, json.dumps(CLOSED[path]) if method == "POST" else None, exposed.bearer)
        answer = connection.getresponse()
        answer.read()
        assert answer.status in (400, 403), method
    connection.close()
    assert exposed.post(GENERATE, GOOD).ok


@pytest.mark.parametrize(
    "method",
    [
        "RepositoryIndex",
        "RepositoryModelLoad",
        "RepositoryModelUnload",
        "SystemSharedMemoryStatus",
        "SystemSharedMemoryRegister",
        "CudaSharedMemoryStatus",
        "TraceSetting",
        "LogSettings",
        "Nothing",
    ],
)
def test_what_writes_to_triton_stays_closed_over_grpc_with_the_token(exposed: Exposed, method: str) -> None:
    with grpc.insecure_channel(exposed.grpc) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary(SERVICE + method)(b"", timeout=60, metadata=[*exposed.bearer.items()])
        assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert (
            service_pb2_grpc.GRPCInferenceServiceStub(channel)
            .ServerLive(service_pb2.ServerLiveRequest(), timeout=60, metadata=[*exposed.bearer.items()])
            .live
        )


def test_a_body_that_is_too_large_is_refused_and_one_of_many_chunks_is_none_to_triton(exposed: Exposed) -> None:
    assert exposed.post(INFER, bytes(17 * MB)).status_code == 413

    def chunks(count: int) -> Iterator[bytes]:
        yield b'{"text_input": "'
        yield from (b"x" for _ in range(count))
        yield b'"}'

    url, many = f"http://{exposed.http}{GENERATE}", 20_000
    answer = requests.post(url, data=chunks(many), headers=exposed.bearer, timeout=60)
    assert answer.json()["text_output"] == "x" * many
    assert (
        requests.get(f"http://{exposed.metrics}/metrics", data=b"xx", headers=exposed.bearer, timeout=60).status_code
        == 413
    )


def test_an_answer_comes_while_the_stream_of_requests_is_open(exposed: Exposed) -> None:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    tensor = over_grpc.InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([["hello"]], dtype=object))
    with over_grpc.InferenceServerClient(exposed.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)), headers=exposed.bearer)
        for _ in range(3):  # the stream is not closed between them
            client.async_stream_infer("echo", [tensor])
            result, error = answers.get(timeout=60)
            assert error is None and result.as_numpy("text_output")[0][0] == b"hello"


def test_the_token_is_said_once_and_lies_in_files_of_its_owner_alone(exposed: Exposed) -> None:
    assert len(exposed.token) >= 32 and exposed.said.count(exposed.token) == 1
    shown = status(exposed.root, STACK)
    assert exposed.token not in json.dumps(shown) + labctl("status", STACK, root=exposed.root).stdout
    assert exposed.token not in labctl("logs", STACK, root=exposed.root).stdout
    folder = exposed.root / ".labs" / STACK
    holding = {
        path for path in exposed.root.rglob("*") if path.is_file() and exposed.token.encode() in path.read_bytes()
    }
    assert holding == {folder / "token", *([folder / "envoy.json"] if exposed.where == "local" else [])}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            assert exposed.token not in " ".join([*process.cmdline(), *process.environ().values()]), process.name()
    if exposed.where == "compose":
        for container in docker_engine.containers(str(exposed.root), STACK):
            assert exposed.token not in json.dumps(container.attrs) + container.logs().decode(errors="replace")


def test_this_machines_own_clients_need_no_token(exposed: Exposed) -> None:
    own = status(exposed.root, STACK)["endpoints"]
    assert all(endpoint.startswith("127.0.0.1:") for endpoint in own.values())
    assert is_live(own["http"])
    for endpoint in own.values():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", int(endpoint.rpartition(":")[2])), timeout=60)


def test_envoys_container_may_do_nothing_but_relay(exposed: Exposed) -> None:
    if exposed.where != "compose":
        return
    server, envoy = (docker_engine.containers(str(exposed.root), STACK, name)[0] for name in ("triton", "envoy"))
    bindings = server.attrs["HostConfig"]["PortBindings"]
    assert {place["HostIp"] for places in bindings.values() for place in places} == {"127.0.0.1"}
    assert sorted(bindings) == sorted(f"{port}/tcp" for port in INNER_PORTS.values())
    host = envoy.attrs["HostConfig"]
    assert sorted(host["PortBindings"]) == sorted(f"{port}/tcp" for port in PUBLISHED_PORTS.values())
    assert host["CapDrop"] == ["ALL"] and host["ReadonlyRootfs"] and host["SecurityOpt"] == ["no-new-privileges:true"]
    assert 0 < host["PidsLimit"] <= 512 and 0 < host["Memory"] <= 2**31
    assert not envoy.attrs["Config"]["User"].startswith("0")


KILL = """
import os, pathlib
for found in pathlib.Path("/proc").glob("[0-9]*/comm"):
    if found.read_text().strip() == "envoy":
        os.kill(int(found.parent.name), 9)
"""


def kill_envoy(root: Path, where: str) -> None:
    if where == "compose":
        docker_engine.containers(str(root), STACK, "envoy")[0].exec_run(["python", "-c", KILL])
        return
    for process in psutil.process_iter(["name"]):
        with suppress(psutil.Error):
            if process.info["name"] == "envoy" and process.environ().get(OF_CHECKOUT) == str(root):
                process.kill()


def test_without_envoy_no_other_machine_is_served_and_restart_brings_it_back(own: Path, where: str) -> None:
    there = exposed_stack(own, where)
    before = status(own, STACK)["endpoints"]
    kill_envoy(own, where)
    shown = eventually(lambda: found if (found := status(own, STACK))["state"] == "degraded" else None)
    assert shown["ended"].startswith("its Envoy")
    assert is_live(before["http"])
    with pytest.raises(requests.ConnectionError):
        there.post(GENERATE, GOOD)
    told = labctl("status", STACK, root=own, check=False).stdout
    assert "No other machine reaches the server" in told and f"labctl restart {STACK}" in told
    labctl("restart", STACK, root=own)
    shown = status(own, STACK)
    assert (shown["state"], shown["endpoints"]) == ("ready", before)
    eventually(lambda: serves(there))
    assert begun(there.http, INFER)[0] == 401
    labctl("restart", STACK, root=own)  # all of the stack, now that nothing of it has died: the token stays
    assert serves(there) and status(own, STACK)["endpoints"] != before


def serves(there: Exposed) -> bool:
    with suppress(requests.ConnectionError):
        return bool(there.post(GENERATE, GOOD).ok)
    return False


def test_who_has_the_token_can_end_triton_and_supervised_it_serves_again(own: Path, where: str) -> None:
    there = exposed_stack(own, where, "--supervise", "5")
    with suppress(requests.ConnectionError):
        assert not there.post(INFER, ENDS_TRITON).ok
    eventually(lambda: serves(there))
    assert begun(there.http, INFER)[0] == 401


def test_before_replicas_the_token_is_asked_for_and_this_machines_clients_are_balanced_without(
    own: Path, where: str
) -> None:
    there = exposed_stack(own, where, "--replicas", "2")
    shown = status(own, STACK)
    assert begun(there.http, INFER)[0] == begun(there.metrics, "/metrics")[0] == 401
    gate = threading.Barrier(2)

    def ask(send: Callable[[], requests.Response]) -> set[bool]:
        gate.wait(60)
        return {send().ok for _ in range(20)}

    url = f"http://{shown['endpoints']['http']}{GENERATE}"
    with ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(
            ask, [lambda: there.post(GENERATE, GOOD), lambda: requests.post(url, json=GOOD, timeout=60)]
        )
        assert [*outcomes] == [{True}, {True}]
    assert all(one["requests"] > 0 for one in status(own, STACK)["replicas"])
