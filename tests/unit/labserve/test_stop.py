"""`stop` of `tensorrt_llm`: it ends the request whose client gave it that id, and an ensemble says that it was cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from fake_backend import Request
from fake_backend import load as load_model
from model_cases import ENGINE, GPT2, Case, answered, ids

LONG = {**ENGINE.good, "request_output_len": ids(90)}
STOP = {**ENGINE.good, "stop": np.array([[True]])}


def together(model: Any, *requests: Request) -> list[Any]:
    """The final responses to requests of one execution, which are received before the next step."""
    return answered(model, list(requests))


def made(response: Any) -> int:
    return int(response.outputs["output_ids"].size)


def test_a_stop_ends_the_live_request_of_its_id_and_no_other(load: Callable[[Case], Any]) -> None:
    stopped, other, stop = together(load(ENGINE), Request(LONG, id="7"), Request(LONG, id="8"), Request(STOP, id="7"))
    assert (made(stopped), made(other), stop.error) == (0, 92, "")


def test_a_stop_ends_nothing_where_two_clients_have_given_one_id(load: Callable[[Case], Any]) -> None:
    one, other, stop = together(load(ENGINE), Request(LONG, id="7"), Request(LONG, id="7"), Request(STOP, id="7"))
    assert (made(one), made(other), bool(stop.error)) == (92, 92, True)


def test_a_request_without_an_id_cannot_be_stopped_by_the_name_that_it_got(load: Callable[[Case], Any]) -> None:
    unnamed, *_ = together(load(ENGINE), Request(LONG), Request(STOP, id="#1"), Request(STOP))
    assert made(unnamed) == 92


def test_an_answer_that_was_stopped_is_an_error_to_the_client_of_an_ensemble(load: Callable[[Case], Any]) -> None:
    stopped, _ = together(load(ENGINE), Request(LONG, id="7"), Request(STOP, id="7"))
    wired = {"output_ids": "TOKENS_BATCH", "context_ids": "CONTEXT_IDS", "last": "LAST"}
    postprocessing = load_model("llm/postprocessing", tokenizer_dir=GPT2)
    (cut,) = postprocessing.execute([Request({wired[name]: value for name, value in stopped.outputs.items()})])
    assert cut.error


def test_an_answer_that_ends_without_a_further_token_is_none(load: Callable[[Case], Any]) -> None:
    postprocessing = load_model("llm/postprocessing", tokenizer_dir=GPT2)
    nothing = {"TOKENS_BATCH": np.zeros((1, 1, 0), np.int32), "CONTEXT_IDS": np.zeros((1, 0), np.int32)}
    for last in ({"LAST": np.array([[True]])}, {}):  # TensorRT-LLM's own model does not say
        (ended,) = postprocessing.execute([Request(nothing | last)])
        assert ended.outputs["OUTPUT"].tolist() == [b""]
