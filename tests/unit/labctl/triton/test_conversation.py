"""An answer as a person sees it: it grows, it is counted, and what goes wrong on the way is told in words."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Event, Semaphore
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from checkout import ROOT
from google.protobuf import text_format
from grpc_here import grpc_serving
from lab_errors import lab_error
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from waiting import DEADLINE_S, eventually

from labctl.labs import workloads
from labctl.triton import conversation
from labkit.client.metrics import Snapshot
from labkit.client.sequences import SequenceClient
from labkit.client.text_model import TextModel
from labkit.errors import LabError
from labsched.replay.slo import Slo

PATIENCE_S = DEADLINE_S
STREAMS = """
max_batch_size: 8 model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
"""
WHOLE = f"""
input {{ name: "text_input" data_type: TYPE_STRING dims: -1 }}
input {{ name: "max_tokens" data_type: TYPE_UINT32 dims: -1 }}
output {{ name: "text_output" data_type: TYPE_STRING dims: -1 }}
parameters {{ key: "tokenizer_dir" value {{ string_value: "{ROOT}/labs/shared/models/tiny-gpt2" }} }}
"""
Script = Callable[[Any, Any], Iterator[Any]]


def token(request: Any, text: str, last: bool = False) -> Any:
    """A response to ``request`` as Triton sends it."""
    raw = text.encode()
    response = service_pb2.ModelInferResponse(id=request.id, model_name=request.model_name)
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    response.raw_output_contents.append(struct.pack("<I", len(raw)) + raw)
    response.parameters["triton_final_response"].bool_param = last
    return service_pb2.ModelStreamInferResponse(infer_response=response)


@contextmanager
def triton(script: Script, config: str = STREAMS, streams: bool = True) -> Iterator[str]:
    """The endpoint of a server with one model, which answers each request by ``script``."""

    class Service(service_pb2_grpc.GRPCInferenceServiceServicer):
        def ModelConfig(self, request: Any, context: Any) -> Any:
            return service_pb2.ModelConfigResponse(config=text_format.Parse(config, model_config_pb2.ModelConfig()))

        def ModelInfer(self, request: Any, context: Any) -> Any:
            return next(script(request, context)).infer_response

        def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:
            if not streams:  # as Triton 2.51 with a response cache
                context.abort(grpc.StatusCode.INTERNAL, "response output count mismatch")
            for request in requests:
                yield from script(request, context)

    register = partial(service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server, Service())
    with grpc_serving(register, threads=2) as endpoint:
        yield endpoint


def ask(endpoint: str) -> Iterator[conversation.PartialAnswer]:
    return conversation.ask_model(endpoint, "m", "Once", 9, {})


def test_a_streamed_text_grows_in_steps_before_it_is_whole() -> None:
    going = Semaphore(0)

    def script(request: Any, context: Any) -> Iterator[Any]:
        for word in (" upon", " a", " time"):
            assert going.acquire(timeout=PATIENCE_S)
            yield token(request, word, last=word == " time")

    shown = []
    with triton(script) as endpoint:
        going.release()
        for answer in ask(endpoint):
            shown.append((answer.text, bool(answer.speed)))
            going.release()
    assert shown == [("Once upon", False), ("Once upon a", False), ("Once upon a time", True)]


def test_tokens_that_come_faster_than_a_page_is_drawn_are_shown_together() -> None:
    def script(request: Any, context: Any) -> Iterator[Any]:
        for number in range(500):
            yield token(request, f" {number}", last=number == 499)

    with triton(script) as endpoint:
        *growing, whole = ask(endpoint)
    assert len(growing) < 100
    assert whole.text.endswith(" 498 499")
    assert "500 responses in" in whole.speed


def test_a_whole_answers_tokens_are_counted_with_the_servers_own_tokenizer() -> None:
    with triton(lambda request, context: iter([token(request, "Once upon a time", last=True)]), WHOLE) as endpoint:
        (whole,) = ask(endpoint)
    count = conversation.count_tokens(" upon a time", f"{ROOT}/labs/shared/models/tiny-gpt2")
    assert count > 0
    assert f"; {count} tokens in" in whole.speed


CACHED = WHOLE + "response_cache { enable: true }"


@contextmanager
def without_streams() -> Iterator[str]:
    def script(request: Any, context: Any) -> Iterator[Any]:
        yield token(request, "Once upon a time", last=True)

    with triton(script, CACHED, streams=False) as endpoint:
        yield endpoint


def test_a_model_with_a_response_cache_is_not_asked_over_a_stream() -> None:
    with without_streams() as endpoint:
        (whole,) = ask(endpoint)
    assert whole.text == "Once upon a time"


@pytest.mark.parametrize("rate", [None, 100.0])
def test_such_a_model_is_measured_too(monkeypatch: pytest.MonkeyPatch, rate: float | None) -> None:
    monkeypatch.setattr("labkit.client.metrics.scrape", lambda *_: Snapshot())
    with without_streams() as endpoint:
        workload = workloads.Workload(output_tokens=3, requests=4, warmup=1, rate=rate)
        found, records = workloads.measure_model({"grpc": endpoint, "metrics": ""}, "m", workload, 2, lambda text: None)
    assert (found["request_count"], len(records)) == (4, 4)
    assert "time_to_first_token" not in found


TOKENIZER = WHOLE[WHOLE.index("parameters") :]
WORDS = " time year people way"  # in a response of a server that sends several tokens at once


def several_at_once(request: Any, context: Any) -> Iterator[Any]:
    """An empty response, and 10 of several tokens."""
    yield token(request, "")
    yield from (token(request, WORDS, last=number == 9) for number in range(10))


def measure_foreign(config: str, **load: Any) -> tuple[dict[str, Any], list[Any]]:
    """What ``labctl bench --endpoint`` measures of a server that sends several tokens at once."""
    with triton(several_at_once, config) as endpoint:
        workload = workloads.Workload(output_tokens=40, requests=2, warmup=0, **load)
        return workloads.measure_model({"grpc": endpoint}, "m", workload, 1, lambda text: None, foreign=True)


def test_the_tokens_of_any_server_are_counted_with_its_tokenizer() -> None:
    found, records = measure_foreign(STREAMS + TOKENIZER, slo=Slo(ttft=60_000), price=1.0)
    count = conversation.count_tokens(WORDS * 10, f"{ROOT}/labs/shared/models/tiny-gpt2")
    assert count > 20
    assert found["output_sequence_length"]["avg"] == count
    assert found["output_token_throughput"] == pytest.approx(2 * count / found["benchmark_duration"])
    assert "inter_token_latency" not in found
    assert found["goodput"] > 0 and found["cost_per_million_tokens"] > 0
    assert [len(record.responses) for record in records] == [10, 10]


def test_a_server_whose_tokenizer_is_not_known_is_measured_in_responses() -> None:
    found, _ = measure_foreign(STREAMS)
    assert found["response_throughput"] == pytest.approx(20 / found["benchmark_duration"])
    assert not [name for name in found if "token" in name and name != "time_to_first_token"]
    header, (row,) = workloads.tabulate({"1 in flight": found})
    assert "tokens/s" not in header and row[header.index("responses/s")] != "-"


@pytest.mark.parametrize("load", [{"slo": Slo(ttft=1)}, {"price": 1.0}])
def test_goodput_and_cost_of_such_a_server_are_refused(load: dict[str, Any]) -> None:
    with lab_error("goodput-needs-tokens"):
        measure_foreign(STREAMS, **load)


@pytest.mark.parametrize("empty", [0, 1])
def test_a_response_without_text_is_no_first_token(empty: int) -> None:
    def script(request: Any, context: Any) -> Iterator[Any]:
        yield from (token(request, "") for _ in range(empty))
        yield token(request, " upon")
        yield token(request, " a time", last=True)

    with triton(script, STREAMS + TOKENIZER) as endpoint:
        workload = workloads.Workload(requests=1, warmup=0)
        found, (record,) = workloads.measure_model(
            {"grpc": endpoint}, "m", workload, 1, lambda text: None, foreign=True
        )
    assert [text for _, text in record.responses] == [" upon", " a time"]
    assert found["time_to_first_token"]["p50"] == pytest.approx((record.responses[0][0] - record.start) * 1e3)


def test_a_whole_answer_of_any_server_has_the_tokens_that_came_not_those_that_were_asked_for() -> None:
    answer = "Once upon a time"
    with triton(lambda request, context: iter([token(request, answer, last=True)]), WHOLE) as endpoint:
        workload = workloads.Workload(["Once"], output_tokens=40, requests=1, warmup=0)
        found, _ = workloads.measure_model({"grpc": endpoint}, "m", workload, 1, lambda text: None, foreign=True)
    count = conversation.count_tokens(" upon a time", f"{ROOT}/labs/shared/models/tiny-gpt2")
    assert found["output_sequence_length"]["avg"] == count
    assert "time_to_first_token" not in found


def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> tuple[Script, Callable[[], bool]]:
    """A server that answers when it was waited for beyond all patience, and the clock that stands still until then."""
    monkeypatch.setattr(conversation, "TIMEOUT_S", 0.0)
    looks, going = iter(range(1000)), Semaphore(0)

    def script(request: Any, context: Any) -> Iterator[Any]:
        left = Event()
        context.add_callback(left.set)  # the thread of a client that has left would hold the server up
        assert eventually(lambda: left.is_set() or going.acquire(blocking=False), PATIENCE_S)
        yield token(request, " upon", last=True)

    def standing() -> bool:
        if next(looks) == 2:
            going.release()
        return True

    return script, standing


@pytest.mark.parametrize("stream", [True, False])
def test_while_the_clock_stands_still_the_time_of_a_question_does_not_count(
    monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    script, standing = stopped_clock(monkeypatch)
    with triton(script) as endpoint:
        assert "".join(conversation.generate(endpoint, "m", "Once", 1, stream, standing)) == "Once upon"
        with lab_error("token-late"):
            list(conversation.generate(endpoint, "m", "Once", 1, stream))


def test_while_the_clock_stands_still_the_time_of_a_chat_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    script, standing = stopped_clock(monkeypatch)
    with triton(script) as endpoint:
        assert [*conversation.ask_model(endpoint, "m", "Once", 1, {}, "", standing)][-1].text == "Once upon"


def test_a_reason_for_the_end_that_is_not_utf_8_ends_an_answer_too() -> None:
    def script(request: Any, context: Any) -> Iterator[Any]:
        response = token(request, " upon", last=True)
        response.infer_response.outputs.add(name="finish_reason", datatype="BYTES", shape=[1])
        response.infer_response.raw_output_contents.append(struct.pack("<I", 1) + b"\xff")
        yield response

    with triton(script) as endpoint:
        assert [*ask(endpoint)][-1].text == "Once upon"


def test_a_sequences_token_that_is_half_a_character_is_shown_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = SimpleNamespace(as_numpy=lambda name: np.array([b"\xed\x95"]))
    monkeypatch.setattr("tritonclient.http.InferenceServerClient.infer", lambda *_, **__: answer)
    monkeypatch.setattr(SequenceClient, "_names", lambda self: ("text", "answer"))
    with SequenceClient("127.0.0.1:1", "m") as client:
        assert client.ask("hello", 1, start=True) == "\N{REPLACEMENT CHARACTER}"


def failing(script: Script, code: str, before: int = 0) -> tuple[list[str], LabError]:
    """What was shown before the error, and the error. No patience is spent until ``before`` texts were shown."""
    shown: list[str] = []
    with triton(script) as endpoint, lab_error(code) as caught:
        for answer in conversation.ask_model(endpoint, "m", "Once", 9, {}, standing=lambda: len(shown) < before):
            shown.append(answer.text)
    return shown, caught.value


def test_a_models_error_in_the_middle_is_told_in_its_words() -> None:
    def script(request: Any, context: Any) -> Iterator[Any]:
        yield token(request, " upon")
        yield service_pb2.ModelStreamInferResponse(error_message="the KV cache is full")

    _, error = failing(script, "model-error")
    assert error.why == "the KV cache is full"


def test_a_server_that_goes_away_in_the_middle_is_not_taken_for_a_models_error() -> None:
    def script(request: Any, context: Any) -> Iterator[Any]:
        yield token(request, " upon")
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    _, error = failing(script, "connection-broken")
    assert error.why == "Socket closed"


@pytest.mark.parametrize("before", [0, 1])
def test_a_server_that_falls_silent_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    monkeypatch.setattr(conversation, "TIMEOUT_S", 0.3)
    over = Semaphore(0)

    def script(request: Any, context: Any) -> Iterator[Any]:
        context.add_callback(over.release)  # the client has gone
        yield from (token(request, " upon") for _ in range(before))
        assert over.acquire(timeout=PATIENCE_S)

    shown, _ = failing(script, "token-late", before)
    assert len(shown) == before


def test_a_server_that_is_not_there_is_told_as_such() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{closed.getsockname()[1]}"
        with lab_error("server-silent", endpoint, "nothing listens there"):
            TextModel.of(endpoint, "m")
