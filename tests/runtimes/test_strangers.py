"""What a stranger is refused: the APIs by which Triton can be written to, turned off or looked into."""

from __future__ import annotations

import functools
import http.client
import json
import stat
from pathlib import Path

import grpc
import pytest
from machinery import container, labctl, status
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import DEADLINE_S

from labctl.triton import arguments, server_api
from labctl.workspace import Workspace

call_triton = functools.partial(server_api.call_triton, timeout=DEADLINE_S)

STACK = "quick"
CLOSED = {
    "/v2/repository/index": {},
    "/v2/repository/models/echo/unload": {},
    "/v2/logging": {"log_info": False},
    "/v2/trace/setting": {"trace_file": "/tmp/trace"},
    "/v2/systemsharedmemory/region/mine/register": {"key": "/labs-region", "offset": 0, "byte_size": 64},
}
CLOSED_CALLS = {
    "RepositoryIndex": service_pb2.RepositoryIndexRequest(),
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest(model_name="echo"),
    "LogSettings": service_pb2.LogSettingsRequest(),
    "TraceSetting": service_pb2.TraceSettingRequest(),
    "SystemSharedMemoryStatus": service_pb2.SystemSharedMemoryStatusRequest(),
}


def up(root: Path, where: str, *more: str) -> dict[str, str]:
    labctl("up", STACK, "--runtime", where, "--ports", "auto", *more, root=root)
    endpoints: dict[str, str] = status(root, STACK)["endpoints"]
    return endpoints


def grpc_code(endpoint: str, method: str, message: object, key: str | None = None) -> grpc.StatusCode:
    with grpc.insecure_channel(endpoint) as channel:
        try:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            getattr(stub, method)(
                message, timeout=DEADLINE_S, metadata=[(f"triton-grpc-protocol-{arguments.KEY}", key or "none")]
            )
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_fault_35_what_writes_to_triton_is_closed_to_strangers_and_open_to_labctl(own: Path, where: str) -> None:
    endpoints = up(own, where)
    for path, body in CLOSED.items():
        refused, told = call_triton(endpoints["http"], "POST", path, body)
        assert refused == 403, (path, told)
        assert call_triton(endpoints["http"], "POST", path, body, secret="guessed")[0] == 403
    for method, message in CLOSED_CALLS.items():
        assert grpc_code(endpoints["grpc"], method, message) == grpc.StatusCode.UNAVAILABLE, method

    key = Workspace(own, own / "cache").folder(STACK).read_secret()
    assert {state.name for state in server_api.model_states(endpoints["http"], key)} == {"echo", "moody"}
    assert grpc_code(endpoints["grpc"], "RepositoryIndex", CLOSED_CALLS["RepositoryIndex"], key) == grpc.StatusCode.OK
    assert call_triton(endpoints["http"], "GET", "/v2/models/echo/stats")[0] == 200
    assert b"nv_inference_count" in call_triton(endpoints["metrics"], "GET", "/metrics")[1]


def test_a_foreign_web_page_cannot_set_the_log(own: Path, where: str) -> None:
    connection = http.client.HTTPConnection(up(own, where)["http"], timeout=DEADLINE_S)
    headers = {"Content-Type": "text/plain", "Origin": "http://evil.example"}
    connection.request("POST", "/v2/logging", '{"log_info": false}', headers)
    assert connection.getresponse().status == 403
    connection.close()


def test_the_secret_lies_in_one_file_for_the_caller_alone_and_goes_with_the_stack(own: Path, where: str) -> None:
    done = labctl("up", STACK, "--runtime", where, "--ports", "auto", "-v", root=own)
    file = Workspace(own, own / "cache").folder(STACK).secret
    first = file.read_text()
    assert len(first) >= 32 and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert first not in done.stdout + done.stderr
    assert first not in json.dumps(status(own, STACK))
    assert first not in labctl("logs", STACK, root=own).stdout
    if where == "compose":
        assert first not in json.dumps(container(own, STACK).attrs)
    others = [path for path in (own / ".labs").rglob("*") if path.is_file() and path != file]
    assert [path for path in others if first.encode() in path.read_bytes()] == []
    labctl("down", STACK, root=own)
    assert not file.exists()
    up(own, where)
    assert file.read_text() != first


@pytest.mark.parametrize("where", ["local"])
def test_shared_memory_can_be_opened_for_those_who_measure_with_it(own: Path, where: str) -> None:
    endpoint = up(own, where, "--allow-client-shm")["http"]
    assert call_triton(endpoint, "GET", "/v2/systemsharedmemory/status")[0] == 200
    assert call_triton(endpoint, "POST", "/v2/logging", {})[0] == 403
    other = labctl("up", STACK, "--runtime", where, root=own, check=False)
    assert other.returncode == 1 and "--allow-client-shm" in other.stderr
