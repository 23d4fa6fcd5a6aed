"""The tokenizer of the random Llama shapes: everyday English in few tokens, and nothing that it cannot spell."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from transformers import AutoTokenizer, LlamaConfig

FOLDER = ROOT / "labs" / "shared" / "models" / "everyday-tokenizer"
STORY = (
    "Once upon a time there was an old man who lived in a small house by the sea. Every morning, before the sun came "
    'up, he took his boat and went out to catch fish. "Don\'t wait for me," he said to his wife, "I\'ll be back at 7." '
    "On Monday the weather was beautiful, but nobody in the village had seen him since he left."
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


def test_its_files_are_those_of_its_sums() -> None:
    for line in (FOLDER / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_plain_prose_costs_at_most_one_and_a_half_tokens_a_word(tokenizer: Any) -> None:
    assert len(tokenizer.encode(STORY)) <= 1.5 * len(STORY.split())


def test_every_text_comes_back_as_it_was(tokenizer: Any) -> None:
    text = "".join(map(chr, range(0x250))) + " 한국어 🧪 \u202eabc\n\n    def f(x):\n\treturn x  \n"
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


def test_it_stays_itself_beside_a_llama_configuration(tokenizer: Any, tmp_path: Path) -> None:
    """Transformers picks a tokenizer's class by the model's type unless told otherwise."""
    for path in FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    LlamaConfig().save_pretrained(tmp_path)
    beside = AutoTokenizer.from_pretrained(tmp_path)
    assert beside.encode(STORY) == tokenizer.encode(STORY)
    assert beside.decode(beside.encode(STORY)) == STORY
