"""The shipped target and its draft: small, of one vocabulary, and of one mind most of the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = Path(__file__).resolve().parents[2] / "labs" / "shared" / "models"
TARGET, DRAFT = MODELS / "tiny-llama", MODELS / "tiny-llama-draft"
PROMPTS = ("I have lived in Seoul", "Once upon a time", "My favourite food is", "Programming in Rust is like")


def model(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def test_both_together_are_a_few_mb_and_the_draft_is_the_smaller_by_far() -> None:
    sizes = [sum(path.stat().st_size for path in folder.iterdir()) for folder in (TARGET, DRAFT)]
    assert sum(sizes) <= 6e6
    assert sizes[1] < sizes[0] / 10


def test_they_share_one_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (TARGET / name).read_bytes() == (DRAFT / name).read_bytes()


@torch.inference_mode()
def test_the_draft_names_most_of_the_targets_next_tokens_and_not_all() -> None:
    tokenizer, target, draft = AutoTokenizer.from_pretrained(TARGET), model(TARGET), model(DRAFT)
    right = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        text = target.generate(ids, max_new_tokens=60, min_new_tokens=60, do_sample=False, pad_token_id=0)
        said = draft(input_ids=text).logits[0].argmax(-1)
        right += (said[ids.shape[1] - 1 : -1] == text[0, ids.shape[1] :]).tolist()
    assert sum(right) / len(right) == pytest.approx(0.7, abs=0.15)
