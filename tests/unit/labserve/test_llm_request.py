"""What a request to tensorrt_llm may say, and how it is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labserve.inflight.parse import parse_generation, read_parameters
from labserve.model_shape import ModelShape
from labserve.params import BadInput, read_word_lists

SHAPE = ModelShape(vocabulary=100, context=64, token_values=8)


def ask(**inputs: Any) -> Any:
    given = {"input_ids": [[1, 2, 3]], "input_lengths": [[3]], "request_output_len": [[4]], **inputs}
    return parse_generation("r", lambda name: np.array(given[name]) if name in given else None, SHAPE)


def test_a_plain_request_is_greedy_and_has_no_end() -> None:
    asked = ask()
    assert (asked.prompt, asked.limit, asked.streaming) == ([1, 2, 3], 4, False)
    assert not asked.sampling.sample and asked.sampling.end_id is None
    assert not ask(random_seed=[[3]]).sampling.sample


@pytest.mark.parametrize(("length", "used"), [(2, [1, 2]), (9, [1, 2, 3])])
def test_lengths_that_disagree_use_the_shorter(length: int, used: list[int]) -> None:
    assert ask(input_lengths=[[length]]).prompt == used


REFUSED: dict[str, list[Any]] = {
    "input_ids": [[[1, 100]], [[-1]], [[1], [2]], [[1] * 64]],
    "input_lengths": [[[0]], [[-5]]],
    "request_output_len": [[[0]], [[62]], [[2**32 - 1]]],
    "temperature": [[[1.0, 2.0]]],
    "bad_words_list": [[[[5], [1]]]],
    **{"beam_width": [[[2]]], "repetition_penalty": [[[0.0]]], "presence_penalty": [[[9.0]]]},
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_what_cannot_be_served_is_refused_by_name(name: str, value: Any) -> None:
    extra = {"input_lengths": [[1000]]} if name == "input_ids" else {}
    with pytest.raises(BadInput, match=f"^{name}: "):
        ask(**extra, **{name: value})


def test_words_are_read_by_their_ends() -> None:
    assert read_word_lists(np.array([[[7, 8, 9], [2, 3, -1]]])) == [[7, 8], [9]]
    assert read_word_lists(np.array([[[0], [-1]]])) == [] == read_word_lists(None)


def test_ends_beyond_the_row_of_ids_give_no_word_without_ids() -> None:
    assert read_word_lists(np.array([[[7, 8], [5, 9]]])) == [[7, 8]]


ASKED = '{"tenant": "a", "structured_outputs": "{\\"json\\": {\\"type\\": \\"boolean\\"}}"}'


def test_a_schema_is_a_parameter_of_an_engine_that_masks_tokens() -> None:
    assert read_parameters(ASKED, masks=True).schema == {"type": "boolean"}
    assert read_parameters("", masks=False).schema is read_parameters('{"tenant": "a"}', masks=False).schema is None


@pytest.mark.parametrize(
    ("parameters", "able", "why"),
    [(ASKED, False, "this engine cannot mask tokens; engine=vllm can"), ('{"structured_outputs": 1}', True, "a text")],
)
def test_another_schema_is_refused_by_name(parameters: str, able: bool, why: str) -> None:
    with pytest.raises(BadInput, match=rf"^structured_outputs: .*{why}"):
        read_parameters(parameters, able)


@pytest.mark.parametrize(
    ("parameters", "found"),
    [
        ("", (None, 2)),
        ('{"tenant": ""}', (None, 2)),
        ('{"tenant": "a", "request_priority": 1, "x": 2.5}', ("a", 1)),
        ('{"request_priority": "9"}', (None, 9)),
    ],
)
def test_tenant_and_priority_are_parameters_of_a_request(parameters: str, found: tuple[str | None, int]) -> None:
    assert read_parameters(parameters, masks=False)[:2] == found


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ('{"tenant": 7}', "tenant"),
        ('{"request_priority": 0}', "request_priority"),
        (f'{{"tenant": "{"x" * 65}"}}', "tenant"),
    ],
)
def test_a_tenant_or_priority_that_is_none_is_refused_by_name(parameters: str, name: str) -> None:
    with pytest.raises(BadInput, match=name):
        read_parameters(parameters, masks=False)
