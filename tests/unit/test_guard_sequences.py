"""Sequence ids behind the guard: one that two requests of an iterative model could share is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from labguard.models import Models
from labguard.rules import Refused
from labguard.sequences import LONGEST, OWN, Sequences

CORRID = {"kind": "CONTROL_SEQUENCE_CORRID"}
CONFIGS: Mapping[str, Any] = {
    "iterative": {"sequence_batching": {"iterative_sequence": True}},
    "steps": {"ensemble_scheduling": {"step": [{"model_name": "plain"}, {"model_name": "iterative"}]}},
    "tokenizer": {"sequence_batching": {"iterative_sequence": False}},
    "plain": {},
    "numbers": {"sequence_batching": {"control_input": [{"control": [CORRID | {"data_type": "TYPE_UINT64"}]}]}},
    "texts": {"sequence_batching": {"control_input": [{"control": [CORRID | {"data_type": "TYPE_STRING"}]}]}},
    "of-numbers": {"ensemble_scheduling": {"step": [{"model_name": "plain"}, {"model_name": "numbers"}]}},
    "of-both": {"ensemble_scheduling": {"step": [{"model_name": "texts"}, {"model_name": "numbers"}]}},
}


@pytest.fixture
def sequences(monkeypatch: pytest.MonkeyPatch) -> Sequences:
    def get(server: str, path: str) -> tuple[int, bytes]:
        if path == "/v2/models/silent/config":
            raise TimeoutError("timed out")
        config = CONFIGS.get(path.split("/")[3])
        return (404, b"") if config is None else (200, json.dumps(config).encode())

    monkeypatch.setattr("labguard.models.get", get)
    return Sequences(Models("triton:8000"))


def ask(sequences: Sequences, model: str, **parameters: Any) -> None:
    """The same over HTTP and gRPC: of either alone, an id would be new to the other."""
    asyncio.run(sequences.check_http(model, {"parameters": parameters}))


def ask_grpc(sequences: Sequences, model: str, **parameters: Any) -> None:
    request = service_pb2.ModelInferRequest(model_name=model)
    fields = {bool: "bool_param", int: "int64_param", str: "string_param"}
    for name, value in parameters.items():
        setattr(request.parameters[name], fields[type(value)], value)
    asyncio.run(sequences.check_grpc(request))


@pytest.mark.parametrize("send", [ask, ask_grpc])
@pytest.mark.parametrize("model", ["iterative", "steps"])
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"sequence_id": "a"}, "it must have sequence_start and no sequence_end"),
        ({"sequence_id": "a", "sequence_start": True, "sequence_end": True}, "no sequence_end"),
        ({"sequence_id": OWN, "sequence_end": True}, "no sequence_end"),
        ({"sequence_id": 1, "sequence_start": True}, f"a number from {OWN} to"),
    ],
)
def test_what_could_end_or_block_the_sequence_of_another_is_refused(
    sequences: Sequences, send: Any, model: str, flags: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=said):
        send(sequences, model, **flags)


@pytest.mark.parametrize("id", ["mine", OWN])
def test_an_id_serves_once(sequences: Sequences, id: int | str) -> None:
    ask(sequences, "iterative", sequence_id=id, sequence_start=True)
    with pytest.raises(Refused, match=r"was asked with .* before"):
        ask_grpc(sequences, "iterative", sequence_id=id, sequence_start=True)
    ask_grpc(sequences, "steps", sequence_id=id, sequence_start=True)


@pytest.mark.parametrize("send", [ask, ask_grpc])
def test_others_keep_their_sequences_and_iterative_models_need_no_id(sequences: Sequences, send: Any) -> None:
    for _ in range(2):
        send(sequences, "tokenizer", sequence_id=7, sequence_start=True, sequence_end=True)
        send(sequences, "unknown", sequence_id=7)
        send(sequences, "iterative", sequence_end=True)
        send(sequences, "iterative", sequence_id=0)
        send(sequences, "iterative", max_tokens=3)


def test_where_triton_does_not_say_what_a_model_is_its_sequences_are_refused(sequences: Sequences) -> None:
    with pytest.raises(Refused, match="cannot ask Triton"):
        ask(sequences, "silent", sequence_id=7, sequence_start=True)


@pytest.mark.parametrize("send", [ask, ask_grpc])
@pytest.mark.parametrize("model", ["iterative", "tokenizer", "unknown"])
def test_an_id_longer_than_triton_takes_is_refused_and_not_remembered(
    sequences: Sequences, send: Any, model: str
) -> None:
    """Of 131,072 ids of any length that are remembered, a hundred would end the judge."""
    for id in ("x" * (LONGEST + 1), "\N{SNOWMAN}" * 43):
        with pytest.raises(Refused, match="a text of up to 128 bytes"):
            send(sequences, model, sequence_id=id, sequence_start=True)
    assert not sequences._used
    send(sequences, model, sequence_id="x" * LONGEST, sequence_start=True)


@pytest.mark.parametrize("send", [ask, ask_grpc])
@pytest.mark.parametrize(
    ("model", "served"), [("numbers", [7]), ("of-numbers", [7]), ("texts", ["a"]), ("of-both", [])]
)
def test_an_id_of_another_type_than_the_models_is_refused(
    sequences: Sequences, send: Any, model: str, served: list[int | str]
) -> None:
    """Triton 2.51 copies a text of 128 bytes into the 8 of a number, and reads 132 bytes of a number for a text."""
    for id in (7, "a"):
        if id in served:
            send(sequences, model, sequence_id=id, sequence_start=True)
            continue
        with pytest.raises(Refused, match=f"sequence_id: {model} takes"):
            send(sequences, model, sequence_id=id, sequence_start=True)


def test_an_id_that_triton_cuts_is_refused(sequences: Sequences) -> None:
    """It reads "a" of "a\0b": one id under two names."""
    for send in (ask, ask_grpc):
        with pytest.raises(Refused, match="without NUL"):
            send(sequences, "iterative", sequence_id="a\0b", sequence_start=True)


def test_a_number_beyond_tritons_own_is_refused(sequences: Sequences) -> None:
    with pytest.raises(Refused, match="to 2\\^64 - 1"):
        ask(sequences, "iterative", sequence_id=2**64, sequence_start=True)
