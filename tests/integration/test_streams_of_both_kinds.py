"""One gRPC stream with requests to decoupled and other models, some of them failing (fault 40).

Triton 2.51 writes the answers of both kinds on a stream at once: it ends, or answers no more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
import pytest
from lab_server import LabServer
from machinery import labctl
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import eventually

SILENT_S = 2.0
pytestmark = pytest.mark.xdist_group("scaled")


def bad_request(model: str) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=model)
    made.inputs.add(name="nope", datatype="BYTES", shape=[1, 1])
    made.raw_input_contents.append(b"\5\0\0\0hello")
    return made


def ends(endpoint: str, models: Sequence[str]) -> bool:
    """Whether the server ends while it answers one stream with a bad request to each of the models."""
    with grpc.insecure_channel(endpoint, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            for _ in stub.ModelStreamInfer(iter([bad_request(model) for model in models]), timeout=SILENT_S):
                pass
        except grpc.RpcError as error:
            return bool(error.code() == grpc.StatusCode.UNAVAILABLE)
    return False


def test_fault_40_the_death_by_such_a_stream_is_told_with_its_reason(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    """Not a wish: it shows that Triton still does this."""
    server = lab_server("scaled")
    eventually(lambda: ends(server.grpc, ["streams", "waits"]))
    eventually(lambda: "The server died: killed by SIGABRT" in labctl("status", "scaled", root=checkout).stdout)
    assert json.loads(labctl("status", "scaled", "--json", root=checkout).stdout)["state"] == "failed"
    asked = labctl("infer", "scaled", "-m", "waits", "-p", "hello", root=checkout, check=False)
    assert asked.returncode == 1 and "killed by SIGABRT" in asked.stderr
