"""Before an engine: texts to rows of token ids, and lists of words to the ids that spell them."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from labserve.params import BadInput, text

MOST_BYTES = 2**18  # no context of ours is as long; what is longer is refused before it costs anything


def open_tokenizer(folder: str) -> Tokenizer:
    """By the tokenizers library alone, where its file is there: transformers would take seconds of every start."""
    if (Path(folder) / "tokenizer.json").is_file():
        tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def find_tokenizer(folder: str) -> Tokenizer | None:
    """The tokenizer of a folder of weights or of an engine; None if it has none that can be read."""
    try:
        return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    except Exception:  # the library raises nothing narrower
        return None


def texts(query: np.ndarray[Any, Any]) -> list[str]:
    """The texts of a `[rows, 1]` tensor. Raises BadInput for another shape, an empty, overlong or invalid text."""
    if query.shape[1:] != (1,):
        raise BadInput("QUERY", f"one text a row, please; the shape is {list(query.shape)}")
    return [text(raw, "QUERY", MOST_BYTES) for raw in query[:, 0]]


def pad_prompts(prompts: Sequence[Sequence[int]], kind: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """`[rows, longest]` ids, filled up with zeros, and the `[rows, 1]` lengths that count."""
    lengths = np.array([len(prompt) for prompt in prompts], dtype=kind)[:, None]
    ids = np.zeros((len(prompts), int(lengths.max())), dtype=kind)
    for row, prompt in zip(ids, prompts, strict=True):
        row[: len(prompt)] = prompt
    return ids, lengths


def word_table(
    lists: np.ndarray[Any, Any], name: str, spell: Callable[[str], Iterable[Sequence[int]]]
) -> np.ndarray[Any, Any]:
    """`[rows, words]` texts to `[rows, 2, ids]`: the ids of all words one after the other, and where each word ends.

    A text may name several words, divided by commas; `spell` gives each way in which a word can be spelled. Without
    words the lower row says -1.
    """
    flat: list[list[int]] = []
    ends: list[list[int]] = []
    for row in lists.reshape(len(lists), -1):
        ids: list[int] = []
        offsets: list[int] = []
        for raw in filter(None, row):
            words = [word for word in text(raw, name, MOST_BYTES).split(",") if word.strip(" ")]
            for word in words:
                for spelling in spell(word):
                    ids += spelling
                    offsets.append(len(ids))
        flat.append(ids)
        ends.append(offsets)
    width = max(1, *(len(ids) for ids in flat), *(len(offsets) for offsets in ends))
    table = np.zeros((len(flat), 2, width), dtype=np.int32)
    table[:, 1] = -1
    for row, ids, offsets in zip(table, flat, ends, strict=True):
        row[0, : len(ids)] = ids
        row[1, : len(offsets)] = offsets
    return table
