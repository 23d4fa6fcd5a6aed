"""Bad requests are refused with the name of the input at fault."""

from typing import Any

import labserve_tiny
import pytest

from labserve.gpt2.sequences import DEFAULT_MAX_TOKENS, new_sequence
from labserve.params import SAMPLING, BadInput, RequestParameter, parse_parameters, text
from labserve.text.prompts import open_tokenizer

FIELDS = {"max_tokens": RequestParameter(int, 1), "ignore_eos": RequestParameter(bool), **SAMPLING}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_tokenizer(str(labserve_tiny.make(tmp_path_factory.mktemp("tiny"))))


def test_numbers_and_booleans_are_read_as_they_are_and_as_text() -> None:
    read = {"max_tokens": 5, "ignore_eos": True, "top_p": 0.5}
    assert parse_parameters('{"max_tokens": 5, "ignore_eos": true, "top_p": 0.5}', FIELDS) == read
    assert parse_parameters('{"max_tokens": "5", "ignore_eos": "true", "top_p": "0.5"}', FIELDS) == read
    assert parse_parameters('{"ignore_eos": "false"}', FIELDS) == {"ignore_eos": False}
    assert parse_parameters("", FIELDS) == parse_parameters("{}", FIELDS) == {}


REFUSED = {
    "max_tokens": ["0", "-3", "2.5", "true", '"many"', "null"],
    "ignore_eos": ["7", '"perhaps"'],
    "temperature": ["-0.1", '"nan"'],
    **{"top_p": ["1.5"], "top_k": ["-2"], "seed": ["-1"], "max_toknes": ["5"]},
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values])
def test_a_parameter_that_is_unknown_or_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(BadInput, match=rf"^{name}: ") as refused:
        parse_parameters(f'{{"{name}": {value}}}', FIELDS)
    assert refused.value.name == name


def test_an_unknown_parameter_is_answered_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match="known are ignore_eos, max_tokens, seed"):
        parse_parameters('{"stream": true}', FIELDS)


@pytest.mark.parametrize(
    ("raw", "reason"), [(b"", "empty"), (b"ab\xff", "UTF-8 at byte 2"), (b"a" * 11, "more than 10")]
)
def test_text_that_is_empty_broken_or_too_long_is_refused(raw: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=f"text_input: .*{reason}"):
        text(raw, "text_input", most_bytes=10)


def test_a_prompt_that_fills_the_context_is_refused_as_text_input(tokenizer: Any) -> None:
    with pytest.raises(BadInput, match=r"text_input: .* tokens; the model sees 128"):
        new_sequence("\N{SNOWMAN}".encode() * 60, "", tokenizer, 128)


def test_max_tokens_beyond_the_context_is_refused_and_the_default_shrinks_to_fit(tokenizer: Any) -> None:
    with pytest.raises(BadInput, match=r"max_tokens: .*leaves 127"):
        new_sequence(b"a", '{"max_tokens": 128}', tokenizer, 128)
    assert new_sequence(b"a", "", tokenizer, 128).limit == 1 + DEFAULT_MAX_TOKENS
    assert new_sequence(b"a", "", tokenizer, 10).limit == 10
