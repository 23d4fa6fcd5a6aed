"""What the judge lets pass and what it refuses: the meaning of a request counts, not its bytes."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from labguard import rules
from labguard.grpc_messages import MessageStream
from labguard.rules import Refused, check_json


def body(**document: Any) -> bytes:
    return json.dumps(document).encode()


def text(**more: Any) -> dict[str, Any]:
    return {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["hello"], **more}


def framed(message: bytes, compressed: int = 0) -> bytes:
    return bytes([compressed]) + len(message).to_bytes(4, "big") + message


def request(**outputs: Any) -> service_pb2.ModelInferRequest:
    made = service_pb2.ModelInferRequest(model_name="echo")
    made.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1]).contents.bytes_contents.append(b"hello")
    made.outputs.add(name="text_output")
    for key, value in outputs.items():
        made.outputs[0].parameters[key].int64_param = value
    return made


CLASSIFICATION = {"name": "text_output", "parameters": {"classification": 1}}


@pytest.mark.parametrize(
    "given_body",
    [
        body(inputs=[text()], outputs=[CLASSIFICATION]),
        body(inputs=[text()], outputs=[CLASSIFICATION]).replace(b"outputs", b"outp\\u0075ts"),
        body(inputs=[text(shape=[2**40], datatype="FP32", data=[1])]),
        body(inputs=[text(shape=[1, 2**30], datatype="INT32", data=[1])]),
        body(inputs=[text(shape=[-1])]),
        body(inputs=[text(shape=[True])]),
        b"[" * 200_000,
        b"[" * 101 + b"]" * 101,
        b'{"outputs": [], "outputs": []}',
        b'{"inputs": "\xff"}',
        b"{} {}",
        b" " * (rules.MAX_REQUEST + 1),
    ],
    ids=lambda sent: repr(sent[:40]),
)
def test_fault_33_what_ends_or_fills_triton_is_refused(given_body: bytes) -> None:
    with pytest.raises(Refused):
        check_json(given_body, None)


@pytest.mark.parametrize(
    "given_body",
    [
        b"",
        body(inputs=[text(data=['{"outputs": [{"parameters": {"classification": 1}}]}'])]),
        body(text_input="classification", parameters={"classification": 1}),
        body(inputs=[text(shape=[0, 5], data=[])], outputs=[{"name": "text_output"}]),
        body(inputs=[{"name": "x", "shape": [2**20], "parameters": {"shared_memory_region": "mine"}}]),
        b"[" * 100 + b"]" * 100,
        b"7",
    ],
    ids=lambda sent: repr(sent[:40]),
)
def test_a_prompt_that_only_looks_like_it_is_served(given_body: bytes) -> None:
    check_json(given_body, None)


def test_tensors_behind_the_json_are_not_parsed() -> None:
    header = body(inputs=[text(data=None)])
    check_json(header + b"[" * 1000, str(len(header)))
    check_json(b"\xff" * 10, "0")


@pytest.mark.parametrize("length", ["", "-1", "+2", "3", "2,2", " 2", "2 ", "0x2", "٢", "99999999999999999999"])
def test_a_length_that_two_parsers_may_read_differently_is_refused(length: str) -> None:
    with pytest.raises(Refused):
        check_json(b"{}", length)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is slow
@given(st.data())
def test_a_stream_passes_whole_and_unchanged_however_it_is_cut(data: st.DataObject) -> None:
    messages = data.draw(st.lists(st.binary(max_size=200), max_size=5))
    whole = b"".join(map(framed, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    stream = MessageStream(False, "")
    passed = [stream.pass_on(piece, last=number == len(pieces) - 1) for number, piece in enumerate(pieces)]
    assert b"".join(passed) == whole


def test_a_message_passes_as_soon_as_it_is_whole() -> None:
    stream = MessageStream(True, "")
    whole = framed(request().SerializeToString())
    assert stream.pass_on(whole[:-1], last=False) == b""
    assert stream.pass_on(whole[-1:] + whole[:3], last=False) == whole
    with pytest.raises(Refused, match="within a message"):
        stream.pass_on(b"", last=True)


def test_classification_over_grpc_is_refused_also_compressed() -> None:
    bad = request(classification=1).SerializeToString()
    for stream, sent in (
        (MessageStream(True, ""), framed(bad)),
        (MessageStream(True, "gzip"), framed(gzip.compress(bad), 1)),
    ):
        with pytest.raises(Refused, match="classification"):
            stream.pass_on(sent, last=True)


def test_a_shape_beyond_its_message_is_refused_over_grpc() -> None:
    bad = request()
    bad.inputs[0].shape[:] = [1, 2**30]
    with pytest.raises(Refused, match="more elements"):
        MessageStream(True, "").pass_on(framed(bad.SerializeToString()), last=True)


def test_a_message_that_unpacks_beyond_the_bound_is_refused_unread() -> None:
    bomb = gzip.compress(bytes(rules.MAX_REQUEST + 1))
    with pytest.raises(Refused) as refused:
        MessageStream(True, "gzip").pass_on(framed(bomb, 1), last=True)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "packed",
    [b"no gzip", gzip.compress(b"a") + gzip.compress(b"b"), gzip.compress(b"a")[:-4]],
    ids=["none", "two of them", "cut off"],
)
def test_a_message_that_unpacks_in_more_ways_than_one_is_refused(packed: bytes) -> None:
    with pytest.raises(Refused):
        MessageStream(True, "gzip").pass_on(framed(packed, 1), last=True)
    with pytest.raises(Refused, match="snappy"):
        MessageStream(True, "snappy").pass_on(framed(packed, 1), last=True)


def test_a_length_beyond_the_bound_is_refused_at_once() -> None:
    with pytest.raises(Refused) as refused:
        MessageStream(True, "").pass_on(b"\0\xff\xff\xff\xff", last=False)
    assert refused.value.status == 413
