"""Texts and words as the engines want them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labserve.params import BadInput
from labserve.text.prompts import pad_prompts, texts, word_table


def words(*rows: list[str]) -> Any:
    return np.array([[word.encode() for word in row] for row in rows], dtype=object)


def letters(word: str) -> list[list[int]]:
    return [[ord(letter) for letter in word]]


def test_prompts_of_different_lengths_are_filled_up_and_their_lengths_told() -> None:
    ids, lengths = pad_prompts([[1, 2, 3], [4]], np.uint32)
    assert ids.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert lengths.tolist() == [[3], [1]]
    assert (ids.dtype, lengths.dtype) == (np.uint32, np.uint32)


@pytest.mark.parametrize(
    ("asked", "spelled", "table"),
    [
        (words(["ab,c"]), letters, [[[97, 98, 99], [2, 3, -1]]]),  # their ids, and where each ends
        (words([""], ["a"]), letters, [[[0], [-1]], [[97], [1]]]),  # a row without words says so
        (words(["x"]), lambda word: [[1, 2], [3]], [[[1, 2, 3], [2, 3, -1]]]),  # every spelling of a word
    ],
)
def test_the_table_of_words_has_each_spelling_and_where_it_ends(asked: Any, spelled: Any, table: Any) -> None:
    assert word_table(asked, "W", spelled).tolist() == table


@pytest.mark.parametrize("shape", [(1,), (2, 2)])
def test_more_or_less_than_one_text_a_row_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="QUERY: one text a row"):
        texts(np.full(shape, b"x", dtype=object))
