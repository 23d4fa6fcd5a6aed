"""What the judge decides by: the listener, the route, the headers that frame a body, the models of a stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from labguard.judge import Judge
from labguard.models import Models
from labguard.rules import LISTENER
from labguard.sequences import Sequences
from labguard.wire import ProcessingRequest

KINDS: Mapping[str, Any] = {
    "streams": {"model_transaction_policy": {"decoupled": True}},
    "more": {"model_transaction_policy": {"decoupled": True}},
    "plain": {},
    "other": {"model_transaction_policy": {"decoupled": False}},
}
CLASSIFICATION = {"outputs": [{"name": "text_output", "parameters": {"classification": 1}}]}
INFER, STREAM = "/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelStreamInfer"
AS_GRPC = {":method": "POST", "content-type": "application/grpc"}
NESTED = b"[" * 200_000


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Judge:
    def get(server: str, path: str) -> tuple[int, bytes]:
        name, version = path.split("/")[3], path.split("/")[5] if "/versions/" in path else ""
        if name == "busy":
            return 503, b"envoy overloaded"
        return (200, json.dumps(KINDS[name]).encode()) if name in KINDS and version != "9" else (400, b"")

    monkeypatch.setattr("labguard.models.get", get)
    models = Models("triton:8000")
    return Judge(models, Sequences(models))


Headers = Mapping[str, str] | Sequence[tuple[str, str]]


def judged(judge: Judge, listener: str, headers: Headers, *body: bytes) -> list[Any]:
    """Its answers to the headers and the pieces of a body."""

    async def shown() -> AsyncIterator[Any]:
        first = ProcessingRequest()
        first.request_headers.end_of_stream = not body
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            first.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        yield first
        for number, piece in enumerate(body):
            message = ProcessingRequest()
            message.request_body.SetInParent()
            message.request_body.body = piece
            message.request_body.end_of_stream = number == len(body) - 1
            yield message

    async def answers() -> list[Any]:
        context = SimpleNamespace(invocation_metadata=lambda: ((LISTENER, listener),))
        return [answer async for answer in judge.process(shown(), context)]

    return asyncio.run(answers())


def refusal(judge: Judge, listener: str, headers: Headers, *body: bytes) -> Any:
    """Why a request is refused, None for one that is not."""
    last = judged(judge, listener, headers, *body)[-1]
    return last.immediate_response if last.ListFields()[0][0].name == "immediate_response" else None


def http(path: str, method: str = "POST", **headers: str) -> dict[str, str]:
    return {":method": method, ":path": path, **{name.replace("_", "-"): value for name, value in headers.items()}}


def request(model: str, version: str = "", **outputs: int) -> bytes:
    made = service_pb2.ModelInferRequest(model_name=model, model_version=version)
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hello")
    made.outputs.add(name="text_output")
    for key, value in outputs.items():
        made.outputs[0].parameters[key].int64_param = value
    message = made.SerializeToString()
    return b"\0" + len(message).to_bytes(4, "big") + message


@pytest.mark.parametrize("length", ["0", "2", "200000", "x"])
@pytest.mark.parametrize(
    "path",
    ["/v2/models/m/generate", "/v2/models/m/generate_stream", "/v2/repository/index", "/v2/repository/models/m/load"],
)
def test_fault_41_a_length_header_is_refused_where_triton_reads_the_whole_body(
    judge: Judge, path: str, length: str
) -> None:
    """The judge would see 0 bytes, and Triton parses all of them."""
    sent = http(path, inference_header_content_length=length)
    for body in ((), (NESTED,)):
        assert refusal(judge, "http", sent, *body).status.code == 400


def test_a_length_header_is_honoured_where_triton_honours_it(judge: Judge) -> None:
    header = b'{"inputs": []}'
    sent = http("/v2/models/m/infer", inference_header_content_length=str(len(header)))
    assert refusal(judge, "http", sent, header + NESTED) is None
    assert refusal(judge, "http", http("/v2/models/m/infer"), header + NESTED).status.code == 400


@pytest.mark.parametrize(
    "content", ["", "application/json", "application/grpc-web", "text/application/grpc", "application/grpc, text/plain"]
)
@pytest.mark.parametrize("path", [INFER, STREAM, "/v2/models/m/infer"])
def test_fault_41_the_grpc_listener_refuses_what_is_not_grpc(judge: Judge, content: str, path: str) -> None:
    """A message with ``classification`` would be judged as a body whose JSON has length 0."""
    headers = {":method": "POST", ":path": path, **({"content-type": content} if content else {})}
    for more in ({}, {"inference-header-content-length": "0"}):
        said = refusal(judge, "grpc", headers | more, request("plain", classification=1))
        assert said.status.code == 415 and not said.HasField("grpc_status")


def test_fault_41_headers_that_frame_http_bodies_are_refused_on_the_grpc_listener(judge: Judge) -> None:
    for name in ("inference-header-content-length", "content-encoding"):
        said = refusal(judge, "grpc", {**AS_GRPC, ":path": INFER, name: "0"}, request("plain"))
        assert name in said.body.decode() and said.grpc_status.status == 3
    assert refusal(judge, "grpc", {**AS_GRPC, ":path": INFER, ":method": "GET"}, request("plain")) is not None


@pytest.mark.parametrize("content", ["application/grpc", "application/grpc+proto", "Application/GRPC"])
def test_the_http_listener_refuses_grpc(judge: Judge, content: str) -> None:
    body = json.dumps(CLASSIFICATION).encode()
    for path in ("/v2/models/m/infer", INFER):
        assert refusal(judge, "http", http(path, content_type=content), body) is not None


def test_of_two_length_headers_neither_is_believed(judge: Judge) -> None:
    twice = [*http("/v2/models/m/infer").items(), *[("inference-header-content-length", "2")] * 2]
    assert refusal(judge, "http", twice[:-1], b"{}") is None
    assert refusal(judge, "http", twice, b"{}").status.code == 400


@pytest.mark.parametrize("body", [b"x", b"{}", NESTED])
def test_a_request_that_asks_for_nothing_with_its_body_must_have_none(judge: Judge, body: bytes) -> None:
    sent = http("/v2/models/m/config", "GET")
    assert refusal(judge, "http", sent, body) is not None
    assert refusal(judge, "http", sent) is None and refusal(judge, "http", sent, b"") is None


@pytest.mark.parametrize("path", ["/v2/logging", "/v2/trace/setting", "/v2/systemsharedmemory/status", "/nope"])
def test_what_is_not_opened_is_refused_before_its_body(judge: Judge, path: str) -> None:
    assert refusal(judge, "http", http(path)).status.code == 403


def test_a_closed_method_is_refused_in_grpcs_words(judge: Judge) -> None:
    said = refusal(judge, "grpc", {**AS_GRPC, ":path": "/inference.GRPCInferenceService/LogSettings"})
    assert (said.status.code, said.grpc_status.status) == (200, 7)  # PERMISSION_DENIED


@pytest.mark.parametrize(
    "models",
    [
        ("streams", "plain"),
        ("plain", "streams"),
        ("more", "streams", "other"),
        ("streams", "unknown"),
        ("unknown", "streams"),
        ("streams", ("streams", "9")),
    ],
)
def test_fault_40_a_stream_to_models_of_both_kinds_is_refused(judge: Judge, models: Any) -> None:
    """Triton 2.51 writes the answers of both at once, and ends (fault 40). An unknown model is a plain one."""
    pieces = [request(*(model if isinstance(model, tuple) else (model,))) for model in models]
    said = refusal(judge, "grpc", {**AS_GRPC, ":path": STREAM}, *pieces)
    assert "models of one kind" in said.body.decode() and said.grpc_status.status == 3
    assert len(judged(judge, "grpc", {**AS_GRPC, ":path": STREAM}, *pieces)) == len(pieces) + 1, "only the last one"
    assert refusal(judge, "grpc", {**AS_GRPC, ":path": STREAM}, b"".join(pieces)) is not None, "in one piece, too"


@pytest.mark.parametrize("models", [("streams", "more", "streams"), ("plain", "other", "unknown", "plain")])
def test_a_stream_to_models_of_one_kind_passes_unchanged(judge: Judge, models: tuple[str, ...]) -> None:
    answers = judged(judge, "grpc", {**AS_GRPC, ":path": STREAM}, *map(request, models))
    assert [answer.ListFields()[0][0].name for answer in answers[1:]] == ["request_body"] * len(models)
    assert not any(answer.request_body.response.HasField("body_mutation") for answer in answers[1:])


@pytest.mark.parametrize("version", ["01", " 1", "-1", "+1", "1x", "0", "9" * 19])
def test_a_version_that_two_parsers_may_read_differently_is_refused_on_a_stream(judge: Judge, version: str) -> None:
    said = refusal(judge, "grpc", {**AS_GRPC, ":path": STREAM}, request("streams", version))
    assert "model_version" in said.body.decode()


@pytest.mark.parametrize("model", ["", "a/b", "x" * 256, "m\N{ARABIC-INDIC DIGIT ONE}"])
def test_a_name_that_no_model_has_is_refused_on_a_stream(judge: Judge, model: str) -> None:
    assert "model_name" in refusal(judge, "grpc", {**AS_GRPC, ":path": STREAM}, request(model)).body.decode()


def test_where_triton_is_too_busy_to_say_what_a_model_is_the_stream_is_refused(judge: Judge) -> None:
    said = refusal(judge, "grpc", {**AS_GRPC, ":path": STREAM}, request("busy"))
    assert said.grpc_status.status == 14  # UNAVAILABLE: try again
