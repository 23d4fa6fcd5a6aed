"""How a text model wants to be asked, told from its configuration."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace as Space
from typing import Any

import pytest
from google.protobuf import text_format
from lab_errors import lab_error
from tritonclient.grpc import model_config_pb2

from labctl.labs import workloads
from labkit.client import metrics
from labkit.client.text_model import TextModel
from labkit.evidence.records import RequestRecord

ITERATIVE = """
max_batch_size: 8 model_transaction_policy { decoupled: true }
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
output { name: "text_output" data_type: TYPE_STRING dims: 1 }
"""
UNBATCHED = """
input { name: "text_input" data_type: TYPE_STRING dims: -1 }
input { name: "max_tokens" data_type: TYPE_UINT32 dims: -1 }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
"""
ENSEMBLE = """
max_batch_size: 128
input { name: "text_input" data_type: TYPE_STRING dims: -1 }
input { name: "max_tokens" data_type: TYPE_UINT32 dims: -1 }
input { name: "bad_words" data_type: TYPE_STRING dims: -1 } input { name: "stop_words" data_type: TYPE_STRING dims: -1 }
input { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "top_k" data_type: TYPE_UINT32 dims: 1 optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: -1 dims: -1 }
ensemble_scheduling { step { model_name: "engine" model_version: -1 } }
"""
CODEGEN = """
max_batch_size: 16
input { name: "INPUT_0" data_type: TYPE_STRING dims: -1 } input { name: "INPUT_1" data_type: TYPE_UINT32 dims: -1 }
input { name: "INPUT_2" data_type: TYPE_STRING dims: -1 }
input { name: "end_id" data_type: TYPE_UINT32 dims: 1 optional: true }
output { name: "sequence_length" data_type: TYPE_UINT32 dims: -1 }
output { name: "OUTPUT_0" data_type: TYPE_STRING dims: -1 dims: -1 }
parameters { key: "end_input" value: { string_value: "end_id" } }
"""


# As NVIDIA's vllm_backend has it, but for the limit, which is a parameter there.
TELLING = """
input { name: "text_input" data_type: TYPE_STRING dims: 1 }
input { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "return_finish_reason" data_type: TYPE_BOOL dims: 1 optional: true }
input { name: "max_tokens" data_type: TYPE_INT32 dims: 1 optional: true }
output { name: "text_output" data_type: TYPE_STRING dims: -1 }
output { name: "finish_reason" data_type: TYPE_STRING dims: -1 }
"""


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is sent to a model of this configuration, and of this engine where it is an ensemble."""

    def send_inputs(model: str, prompt: str, inputs: list[Any], id: str, **more: Any) -> Any:
        sent = {item.name(): (item.datatype(), tuple(item.shape())) for item in inputs}
        known = {name: more.pop(name) for name in ("output", "tokens", "priority")}
        return Space(inputs=sent, **known, parameters=more)

    def asked(config: str, engine: str = "", to_the_end: bool = False, priority: int = 0) -> Any:
        configured(monkeypatch, model=config, engine=engine)
        stream: Any = Space(send_inputs=send_inputs)
        return TextModel.of("nowhere", "model").send(stream, "Hello", 7, to_the_end, priority=priority)

    return asked


def configured(monkeypatch: pytest.MonkeyPatch, **configs: str) -> None:
    """A server whose models have these configurations."""

    def get_model_config(name: str, client_timeout: float = 0) -> Any:
        return Space(config=text_format.Parse(configs[name], model_config_pb2.ModelConfig()))

    client = contextlib.nullcontext(Space(get_model_config=get_model_config))
    monkeypatch.setattr("labkit.client.text_model.connect", lambda endpoint: client)


def test_limits_travel_as_parameters_where_the_model_has_no_such_input(ask: Any) -> None:
    sent = ask(ITERATIVE)
    assert sent.inputs == {"text_input": ("BYTES", (1, 1))}
    assert sent.parameters == {"max_tokens": 7, "ignore_eos": False}
    assert sent.tokens == 0  # each response is one


def test_a_model_without_a_batch_dimension_gets_none(ask: Any) -> None:
    sent = ask(UNBATCHED)
    assert sent.inputs == {"text_input": ("BYTES", (1,)), "max_tokens": ("UINT32", (1,))}
    assert (sent.tokens, sent.parameters) == (7, {})


def test_a_model_that_can_say_it_is_asked_why_its_answer_ended(ask: Any) -> None:
    assert "return_finish_reason" in ask(TELLING).inputs
    assert "return_finish_reason" not in ask(UNBATCHED).inputs


@pytest.mark.parametrize(("decoupled", "pieces"), [(False, ["one two three"]), (True, ["one ", "two three", ""])])
@pytest.mark.parametrize(("reason", "tokens"), [("length", 7), ("stop", 3)])
def test_bench_counts_the_tokens_of_an_answer_that_says_why_it_ended(
    monkeypatch: pytest.MonkeyPatch, decoupled: bool, pieces: list[str], reason: str, tokens: int
) -> None:
    config = f"model_transaction_policy {{ decoupled: {str(decoupled).lower()} }} {TELLING}"
    configured(monkeypatch, model=config)
    record = RequestRecord("r", "model", "p", start=1.0, end=5.0, tokens=0 if decoupled else 7, finish_reason=reason)
    record.responses = [(2.0 + n, piece) for n, piece in enumerate(pieces)]
    nothing = metrics.Snapshot()
    monkeypatch.setattr("labctl.labs.workloads.load.closed_loop", lambda *_: [record])
    monkeypatch.setattr("labctl.labs.workloads.metrics.scrape", lambda _: nothing)
    monkeypatch.setattr(workloads, "count_tokens", lambda text, folder: len(text.split()) if folder == "mine" else 99)
    found, _ = workloads.measure_model(
        {"grpc": "x", "metrics": "y"}, "model", workloads.Workload(output_tokens=7, warmup=0), 1, lambda _: None, "mine"
    )
    assert record.output_tokens == tokens
    assert found["output_sequence_length"]["avg"] == tokens


def test_only_what_is_required_is_sent_to_an_ensemble(ask: Any) -> None:
    assert list(ask(ENSEMBLE).inputs) == ["text_input", "max_tokens", "bad_words", "stop_words"]


def test_an_ensemble_streams_when_a_step_of_it_does(ask: Any) -> None:
    sent = ask(ENSEMBLE, engine="model_transaction_policy { decoupled: true }")
    assert "stream" in sent.inputs
    assert sent.tokens == 0


def test_the_output_is_found_among_several(ask: Any) -> None:
    sent = ask(CODEGEN)
    assert sent.output == "OUTPUT_0"
    assert sent.inputs["INPUT_2"] == ("BYTES", (1, 1))


def test_an_answer_that_must_have_its_full_length_is_told_an_end_that_never_comes(ask: Any) -> None:
    assert "end_id" not in ask(CODEGEN).inputs
    assert ask(CODEGEN, to_the_end=True).inputs["end_id"] == ("UINT32", (1, 1))


@pytest.mark.parametrize("config", [ITERATIVE, ENSEMBLE])
def test_a_priority_is_no_parameter_of_the_request(ask: Any, config: str) -> None:
    sent = ask(config, priority=1)
    assert sent.priority == 1
    assert "priority" not in sent.parameters


def test_a_model_that_takes_no_text_is_refused_by_name(ask: Any) -> None:
    with lab_error("text-model-not"):
        ask('input { name: "ids" data_type: TYPE_INT32 dims: 1 } output { name: "out" data_type: TYPE_INT32 dims: 1 }')
