"""Every client sends request ids of its own, of which none is sent twice: step logs name requests by them."""

from __future__ import annotations

import importlib.util
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import grpc
import numpy as np
import pytest
from checkout import ROOT
from google.protobuf import text_format
from grpc_here import grpc_serving
from lab_errors import lab_error
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

from labctl.triton import conversation
from labkit.client import identity, load
from labkit.client.ask import TextStream, kind_of
from labkit.evidence.records import RequestRecord

PLAIN_NUMBER = re.compile(r"[1-9][0-9]*")
CONFIG = """
max_batch_size: 8
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
"""
ANSWER_IDS = 3  # tokens of the identity test's answers, after a prompt of 2


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers every model at once, and remembers the ids that it was sent."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.prompts: list[list[int]] = []

    def ModelConfig(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelConfigResponse(config=text_format.Parse(CONFIG, model_config_pb2.ModelConfig()))

    def ModelMetadata(self, request: Any, context: Any) -> Any:
        inputs = [{"name": name, "datatype": "INT32"} for name in ("max_tokens", "request_output_len", "end_id")]
        return service_pb2.ModelMetadataResponse(name=request.name, inputs=inputs)

    def ModelInfer(self, request: Any, context: Any) -> Any:
        self.ids.append(request.id)
        response = service_pb2.ModelInferResponse(id=request.id, model_name=request.model_name)
        if request.model_name == "tensorrt_llm":
            self.prompts.append(np.frombuffer(request.raw_input_contents[0], dtype=np.int32).tolist())
            tokens = 2 + ANSWER_IDS
            response.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1, tokens])
            response.raw_output_contents.append(b"\x01\0\0\0" * tokens)
        else:
            response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
            response.raw_output_contents.append(struct.pack("<I", 2) + b"ok")
        return response

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:
        for request in requests:
            response = self.ModelInfer(request, context)
            response.parameters["triton_final_response"].bool_param = True
            yield service_pb2.ModelStreamInferResponse(infer_response=response)


def serving(server: Server) -> AbstractContextManager[str]:
    return grpc_serving(lambda listener: service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(server, listener))


def lab_03() -> Any:
    spec = importlib.util.spec_from_file_location("lab_03_client", ROOT / "labs/03-llama-hf-vs-trtllm/client.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def another_server() -> None:
    kind_of.cache_clear()  # what a server at that address takes


def identity_test(endpoint: str) -> list[RequestRecord]:
    requests = [identity.Ids("a b", [5, 6], ANSWER_IDS) for _ in range(4)]
    return identity.run_identity_test(endpoint, requests)


def lab_03_at_once(endpoint: str) -> list[RequestRecord]:
    return [r for model in ("llama-python", "ensemble") for r in lab_03().at_once(endpoint, model, ["a", "b"], 4)]


def lab_03_streaming(endpoint: str) -> list[RequestRecord]:
    found: list[RequestRecord] = lab_03().streamed(endpoint, "ensemble", ["a", "b"], 4)
    return found


def two_streams(endpoint: str) -> list[RequestRecord]:
    records = []
    for _ in range(2):
        with TextStream(endpoint) as stream:
            records.append(stream.send("m", "Once", max_tokens=3))
            stream.wait(*records, timeout=60)
    return records


def infer(endpoint: str) -> list[RequestRecord]:
    assert "ok" in "".join(conversation.generate(endpoint, "m", "Once", 3, stream=False))
    return []


def benched(endpoint: str) -> list[RequestRecord]:
    return list(load.closed_loop(endpoint, 2, 3, lambda stream, number: stream.send("m", "Once"), 120))


@pytest.mark.parametrize("client", [identity_test, lab_03_at_once, lab_03_streaming, two_streams, infer, benched])
def test_every_client_sends_plain_numbers_as_request_ids_and_none_twice(
    client: Callable[[str], list[RequestRecord]],
) -> None:
    server = Server()
    with serving(server) as endpoint:
        records = client(endpoint)
    assert server.ids
    assert [sent for sent in server.ids if not PLAIN_NUMBER.fullmatch(sent)] == []
    assert len(set(server.ids)) == len(server.ids)
    assert {record.id for record in records} <= set(server.ids)
    assert all(record.label and not record.label.isdecimal() for record in records)


def test_two_processes_do_not_begin_with_the_same_ids() -> None:
    code = "from labkit.evidence.records import request_id; print(request_id(), request_id())"
    said = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        for _ in range(3)
    ]
    assert all(int(second) == int(first) + 1 for first, second in said)
    assert len({first for first, _ in said}) == 3


def test_the_identity_test_warms_up_with_other_prompts_than_those_that_it_measures() -> None:
    server = Server()
    requests = [identity.Ids("a b", [number, number + 100], ANSWER_IDS) for number in range(1, 5)]
    with serving(server) as endpoint:
        identity.run_identity_test(endpoint, requests)
    warming, measured = server.prompts[: identity.WARMUP], server.prompts[identity.WARMUP :]
    assert sorted(measured) == [request.prompt for request in requests]
    assert not {prompt[0] for prompt in warming} & {prompt[0] for prompt in measured}, "no beginning is shared"


def test_whole_numbers_of_another_models_type_are_told_with_where_the_type_stands() -> None:
    class Refusing(Server):
        def ModelInfer(self, request: Any, context: Any) -> Any:
            said = "inference input 'max_tokens' data-type is 'UINT32', but model 'm' expects 'INT32'"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, said)

    with serving(Refusing()) as endpoint, lab_error("model-error", "the model's metadata"):
        lab_03().at_once(endpoint, "ensemble", ["a"], 4)
