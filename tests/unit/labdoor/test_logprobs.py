"""Log probabilities: what a decoder makes of its scores, and what the door makes of that."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from labdoor.answers import chat_form, completion_form
from labdoor.errors import ApiError
from labdoor.generation import ScoredToken, Scores
from labdoor.models import Model
from labdoor.requests import CompletionRequest, parse_body
from labdoor.vocabulary import Vocabulary
from labkit.client.text_model import Input, TextModel
from labserve.text.logprobs import LEAST, LogProb, as_json, log_probs

LOGITS = np.array([1.0, 4.0, -2.0, 3.0, 0.5], dtype=np.float32)


def test_they_are_the_logarithms_of_the_softmax_with_their_ranks() -> None:
    expected = torch.log_softmax(torch.tensor(LOGITS), dim=-1)
    found = log_probs(torch.tensor(LOGITS), 0, 2)
    assert list(found) == [0, 1, 3], "the token itself, then the likeliest"
    assert [one.rank for one in found.values()] == [3, 1, 2]
    for id, one in found.items():
        assert one.logprob == pytest.approx(float(expected[id]), abs=1e-6)


def test_a_likely_token_stands_once_and_first_and_one_out_of_reach_has_a_number_too() -> None:
    assert list(log_probs(LOGITS, 3, 2)) == [3, 1]
    assert list(log_probs(LOGITS, 3, 0)) == [3]
    assert log_probs(np.array([0.0, -math.inf]), 0, 2) == {0: LogProb(0.0, 1), 1: LogProb(LEAST, 2)}


class Words:
    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(f"w{id}" for id in ids)


def output(token: int, count: int) -> str:
    return as_json(log_probs(LOGITS, token, count), Words())


def test_a_token_goes_with_its_text_and_not_before() -> None:
    scores = Scores(1)
    scores.add("", output(0, 1))  # half a character
    scores.add("é", output(1, 1))
    scores.add(" is", output(2, 1))  # may begin a stop string: its text is held back
    assert [(one.start, one.end) for one in scores.take(1, stopped=False)] == [(0, 0), (0, 1)]
    assert scores.take(2, stopped=False) == []
    assert [(one.start, one.end) for one in scores.take(4, stopped=False)] == [(1, 4)]


def test_tokens_of_a_stop_string_are_left_out() -> None:
    scores = Scores(1)
    for text in ("one", " two", " three"):
        scores.add(text, output(0, 1))
    assert [one.start for one in scores.take(5, stopped=True)] == [0, 3]


def test_the_rivals_are_the_likeliest_and_hold_the_token_if_it_is_one() -> None:
    scores = Scores(2)
    scores.add("a", output(0, 2))
    scores.add("b", output(1, 2))
    unlikely, likely = scores.take(2, stopped=False)
    assert [token for token, _ in unlikely.rivals] == ["w1", "w3"]
    assert [token for token, _ in likely.rivals] == ["w1", "w3"]
    assert (unlikely.own[0], likely.own[0]) == ("w0", "w1")


def test_a_token_that_a_mask_forbids_has_a_number_that_json_has() -> None:
    scores = Scores(1)
    scores.add("a", '[{"1": {"logprob": -Infinity, "rank": 9, "decoded_token": "a"}}]')
    assert [one.own for one in scores.take(1, stopped=False)] == [("a", LEAST)]


TOKENS = [ScoredToken(0, 2, ("hé", -0.5), [("x", -0.1)]), ScoredToken(2, 3, ("!", -0.2), [("!", -0.2)])]


def test_the_form_of_completions_has_lists_of_one_length() -> None:
    assert completion_form(TOKENS) == {
        "text_offset": [0, 2],
        "token_logprobs": [-0.5, -0.2],
        "tokens": ["hé", "!"],
        "top_logprobs": [{"x": -0.1, "hé": -0.5}, {"!": -0.2}],
    }


def test_the_form_of_chats_spells_each_token_in_bytes() -> None:
    first = chat_form(TOKENS)["content"][0]
    assert (first["token"], first["bytes"], first["logprob"]) == ("hé", [0x68, 0xC3, 0xA9], -0.5)
    assert first["top_logprobs"] == [{"token": "x", "bytes": [0x78], "logprob": -0.1}]


@pytest.mark.parametrize("able", [True, False])
def test_only_a_model_with_the_output_is_asked_for_them(able: bool) -> None:
    inputs = {"text": Input("text", "BYTES", (1, 1))}
    wants = Input("return_logprobs", "BOOL", (1,))
    made = TextModel("m", inputs, "text", "", "out", True, logprobs="logprobs" if able else "", return_logprobs=wants)
    model = Model(made, Vocabulary())
    body: dict[str, Any] = {"model": "m", "prompt": "x", "logprobs": 3}
    asked = parse_body(CompletionRequest, json.dumps(body).encode())
    if able:
        tensors, parameters = model.wire("x", 4, asked, 0)
        assert parameters["logprobs"] == 3
        assert "return_logprobs" in [tensor.name for tensor in tensors], "vLLM's model wants to be asked by an input"
    else:
        with pytest.raises(ApiError, match="logprobs: model m gives no log probabilities") as caught:
            model.wire("x", 4, asked, 0)
        assert (caught.value.status, caught.value.code) == (400, "unsupported_parameter")
