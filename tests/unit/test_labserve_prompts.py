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


def test_the_table_of_words_has_their_ids_and_where_each_ends() -> None:
    assert word_table(words(["ab,c"]), "W", letters).tolist() == [[[97, 98, 99], [2, 3, -1]]]


def test_a_row_without_words_says_so() -> None:
    table = word_table(words([""], ["a"]), "W", letters)
    assert table.tolist() == [[[0], [-1]], [[97], [1]]]


def test_every_spelling_of_a_word_stands_in_the_table() -> None:
    table = word_table(words(["x"]), "W", lambda word: [[1, 2], [3]])
    assert table.tolist() == [[[1, 2, 3], [2, 3, -1]]]


@pytest.mark.parametrize("shape", [(1,), (2, 2)])
def test_more_or_less_than_one_text_a_row_is_refused_by_name(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadInput, match="QUERY: one text a row"):
        texts(np.full(shape, b"x", dtype=object))
