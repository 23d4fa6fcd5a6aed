"""The shipped model: small, whole, readable, and rarely in doubt between two tokens."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "labs" / "shared" / "models" / "tiny-gpt2"
PROMPTS = ("Programming in C++ is like", "I have lived in Seoul", "My favourite food is", "Once upon a time there was")
NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def continued(model: Any, tokenizer: Any) -> list[torch.Tensor]:
    """Greedy continuations of the labs' prompts, 550 tokens each."""
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    asked = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)  # in one batch: a step of four costs one of one
    rows = model.generate(**asked, max_new_tokens=600, min_new_tokens=600, do_sample=False, pad_token_id=0)
    return [row[mask.argmax() :] for row, mask in zip(rows, asked.attention_mask, strict=True)]


def test_it_is_a_gpt2_of_at_most_8_mb(model: Any) -> None:
    assert model.config.model_type == "gpt2"
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8e6


@pytest.mark.parametrize("file", sorted(FOLDER.parent.glob("*/tokenizer.json")), ids=lambda file: file.parent.name)
def test_tokenizers_older_than_0_20_read_the_merges_too(file: Path) -> None:
    # NVIDIA's images of TensorRT-LLM before 0.14 have such; there merges are texts and no pairs.
    merges = json.loads(file.read_text(encoding="utf-8"))["model"]["merges"]
    assert all(isinstance(merge, str) and len(merge.split(" ")) == 2 for merge in merges)


def test_every_byte_can_be_spelled(tokenizer: Any) -> None:
    text = "".join(map(chr, range(1, 0x250))) + "한국어 🧪 \u202eabc\u0000"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_its_tokenizer_loads_by_a_class_that_transformers_4_and_5_know() -> None:
    assert '"tokenizer_class": "PreTrainedTokenizerFast"' in (FOLDER / "tokenizer_config.json").read_text()


def test_it_continues_in_words_that_its_corpus_has(tokenizer: Any, continued: list[torch.Tensor]) -> None:
    sys.path.insert(0, str(ROOT / "scripts" / "training"))
    try:
        from corpus import english
    finally:
        sys.path.pop(0)
    known = english.words()
    for ids in continued:
        text = tokenizer.decode(ids).replace("<|endoftext|>", " ")
        words = re.sub(r'[".,]', "", text).split()[:-1]  # the last one may be cut off
        unknown = [word for word in words if word not in known]
        assert len(unknown) <= len(words) // 100, unknown


def test_its_sentences_do_not_soon_repeat(tokenizer: Any, continued: list[torch.Tensor]) -> None:
    for ids in continued:
        sentences = tokenizer.decode(ids[:300]).split(". ")
        assert len(set(sentences)) >= 0.6 * len(sentences), sentences


@torch.inference_mode()
def test_near_ties_of_its_two_best_tokens_are_rare(model: Any, continued: list[torch.Tensor]) -> None:
    gaps = []
    for ids in continued:
        best = model(ids[None]).logits[0].topk(2).values
        gaps.append(best[:, 0] - best[:, 1])
    every = torch.cat(gaps)
    assert len(every) > 2000
    assert (every < NEAR_TIE).sum().item() < len(every) / 1000
