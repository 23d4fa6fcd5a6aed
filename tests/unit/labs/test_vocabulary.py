"""Which tokens are text by themselves, and rows of unequal length in one rectangle."""

from __future__ import annotations

import numpy as np
import pytest
from checkout import ROOT
from tokenizers import Tokenizer

from labserve.batches import pad, split_padded
from labserve.text.vocabulary import alphabet, is_whole_text, mask, spelling

FOLDER = ROOT / "labs" / "shared" / "models" / "tiny-gpt2"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(FOLDER / "tokenizer.json"))


def test_every_byte_has_one_letter() -> None:
    assert sorted(alphabet().values()) == list(range(256))
    assert (alphabet()["a"], alphabet()["Ġ"], alphabet()["Ċ"]) == (ord("a"), ord(" "), ord("\n"))


def test_tokens_are_spelled_as_the_tokenizer_decodes_them(tokenizer: Tokenizer) -> None:
    words = spelling(tokenizer)
    assert len(words) == tokenizer.get_vocab_size()
    for id, raw in words.items():
        assert raw.decode("utf-8", errors="replace") == tokenizer.decode([id], skip_special_tokens=False)


def test_the_bytes_of_a_text_are_those_of_its_tokens(tokenizer: Tokenizer) -> None:
    text = " Un café, 서울 \N{GRINNING FACE}\n"
    words = spelling(tokenizer)
    assert b"".join(words[id] for id in tokenizer.encode(text).ids) == text.encode()


@pytest.mark.parametrize(
    ("raw", "is_text"),
    [(b" the", True), ("é".encode(), True), ("é".encode()[:1], False), ("é".encode()[1:], False), (b"", False)],
)
def test_half_a_character_is_no_text(raw: bytes, is_text: bool) -> None:
    assert is_whole_text(raw) is is_text


def test_the_mask_allows_what_is_text_and_nothing_beyond_the_tokenizer() -> None:
    assert mask({0: b"a", 1: b"\xc3", 2: b"bc", 9: b"d"}, size=5).tolist() == [True, False, True, False, False]


def test_rows_are_filled_up_on_the_right_and_cut_again() -> None:
    blocks = [np.array([[1, 2, 3]]), np.array([[4], [5]]), np.array([[6, 7]])]
    padded = pad(blocks)
    assert padded.tolist() == [[1, 2, 3], [4, 0, 0], [5, 0, 0], [6, 7, 0]]
    parts = split_padded(padded.astype(np.float32), [block.shape for block in blocks])
    assert [part.tolist() for part in parts] == [block.tolist() for block in blocks]
