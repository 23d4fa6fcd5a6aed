"""One gRPC stream with requests to decoupled and other models, some of them failing (fault 40).

Triton 2.51 writes the answers of both kinds on a stream at once: it ends, or answers no more. The guard refuses them.
"""

from __future__ import annotations

import json
import queue
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from lab_server import LabServer
from machinery import labctl
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import eventually

PATIENCE_S = 120.0  # of a client on a machine that is busy with other tests
SILENT_S = 2.0
DECOUPLED, PLAIN = ("streams",), ("waits", "computes", "remembers")
pytestmark = pytest.mark.xdist_group("scaled")


def request(model: str, fails: bool) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name=model)
    made.inputs.add(name="nope" if fails else "text_input", datatype="BYTES", shape=[1, 1])
    made.raw_input_contents.append(b"\5\0\0\0hello")
    if model in DECOUPLED:
        made.parameters["max_tokens"].int64_param = 3
        made.parameters["triton_enable_empty_final_response"].bool_param = True
    if model == "remembers":
        made.parameters["sequence_id"].int64_param = random.getrandbits(60) + 2**32
        made.parameters["sequence_start"].bool_param = made.parameters["sequence_end"].bool_param = True
    return made


def ended(endpoint: str, requests: Sequence[service_pb2.ModelInferRequest], patience: float) -> tuple[int, str]:
    """How many final answers and errors came on one stream, and how it ended."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    finals = 0
    with grpc.insecure_channel(endpoint, options=options) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        try:
            for answer in stub.ModelStreamInfer(iter(requests), timeout=patience):
                given = answer.infer_response.parameters
                decoupled = "triton_final_response" in given and answer.infer_response.model_name in DECOUPLED
                finals += bool(answer.error_message) or not decoupled or given["triton_final_response"].bool_param
        except grpc.RpcError as error:
            return finals, error.code().name
    return finals, "OK"


def test_fault_40_behind_the_guard_each_request_of_a_stream_has_an_answer_or_an_error_and_nothing_dies(
    lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    server, chance, seen = lab_server("scaled", "--expose"), random.Random(12), Counter[str]()
    for _ in range(150):
        models = [chance.choice((*DECOUPLED, *PLAIN, "no-such")) for _ in range(chance.randint(2, 6))]
        of_one_kind = len({model in DECOUPLED for model in models}) == 1
        finals, how = ended(server.grpc, [request(name, chance.random() < 0.5) for name in models], PATIENCE_S)
        assert (finals, how) == (len(models), "OK") if of_one_kind else how in ("INVALID_ARGUMENT", "INTERNAL"), models
        seen["one kind" if of_one_kind else "both"] += 1
    assert min(seen["one kind"], seen["both"]) >= 20
    shown = json.loads(labctl("status", "scaled", "--json", root=checkout).stdout)
    assert shown["state"] == "ready"


def test_behind_the_guard_the_refusal_says_what_to_do(lab_server: Callable[..., LabServer]) -> None:
    server = lab_server("scaled", "--expose")
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            list(
                stub.ModelStreamInfer(iter([request("streams", True), request("waits", True)] * 9), timeout=PATIENCE_S)
            )
    told: Any = refused.value
    assert told.code().name == "INTERNAL" or "open another stream" in told.details()


def test_behind_the_guard_a_refusal_after_an_answer_is_a_reset_of_the_stream(
    lab_server: Callable[..., LabServer],
) -> None:
    """Envoy has sent the answer's headers, so it has no status left to send (docs/operate/security.md)."""
    server, later = lab_server("scaled", "--expose"), queue.SimpleQueue[service_pb2.ModelInferRequest | None]()
    with grpc.insecure_channel(server.grpc) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        answers = stub.ModelStreamInfer(iter(later.get, None), timeout=PATIENCE_S)
        later.put(request("streams", False))
        assert next(answers).infer_response.model_name == "streams"
        later.put(request("waits", False))
        with pytest.raises(grpc.RpcError) as refused:
            list(answers)
        later.put(None)
    told: Any = refused.value
    assert told.code().name == "INTERNAL" and "RST_STREAM" in told.details()


@pytest.mark.parametrize("models", [("streams", "waits")])
def test_fault_40_on_loopback_the_death_by_such_a_stream_is_told_with_its_reason(
    models: tuple[str, ...], lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    """Not a wish: it shows that Triton still does this, so that the guard's rule is needed."""
    server = lab_server("scaled")

    def dies() -> bool:
        _, how = ended(server.grpc, [request(name, fails=True) for name in models], SILENT_S)
        return how == "UNAVAILABLE"

    eventually(dies)
    eventually(lambda: json.loads(labctl("status", "scaled", "--json", root=checkout).stdout)["state"] == "failed")
    said = labctl("status", "scaled", root=checkout).stdout
    assert "The server died: killed by SIGABRT" in said
    asked = labctl("infer", "scaled", "-m", "waits", "-p", "hello", root=checkout, check=False)
    assert asked.returncode == 1 and "killed by SIGABRT" in asked.stderr
