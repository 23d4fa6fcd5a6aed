"""The spelling of a byte-level BPE vocabulary: which bytes each token stands for."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def alphabet() -> Mapping[str, int]:
    """Byte-level BPE writes each byte as one printable character: the byte that each such character means.

    Printable bytes of Latin-1 stand for themselves, the others for the characters from 256 on, in order (GPT-2, 2019).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    return characters | {chr(code): byte for code, byte in enumerate(others, 256)}


def spelling(tokenizer: Any) -> dict[int, bytes]:
    """The bytes of every token of a `tokenizers.Tokenizer`, by id. An added token is its own text in UTF-8."""
    added = tokenizer.get_added_tokens_decoder()
    letters = alphabet()
    return {
        id: token.encode() if id in added else bytes(letters[letter] for letter in token)
        for token, id in tokenizer.get_vocab(with_added_tokens=True).items()
    }


def is_whole_text(raw: bytes) -> bool:
    """Whether bytes are text by themselves: not empty, and UTF-8 without half a character at either end."""
    try:
        return bool(raw.decode("utf-8"))
    except UnicodeDecodeError:
        return False


def mask(words: Mapping[int, bytes], size: int) -> NDArray[np.bool_]:
    """[size], true for the ids whose bytes are text by themselves; ids beyond the tokenizer's have no text at all."""
    allowed = np.zeros(size, dtype=bool)
    allowed[[id for id, raw in words.items() if id < size and is_whole_text(raw)]] = True
    return allowed
