"""The shipped models: small, whole, readable by every release, and each good for what its lab shows with it."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkout import ROOT
from transformers import AutoModelForCausalLM, AutoTokenizer

MODELS = ROOT / "labs" / "shared" / "models"
KINDS = {"tiny-gpt2": "gpt2", "tiny-codegen": "codegen", "tiny-llama": "llama", "tiny-llama-draft": "llama"}
NEAR_TIE = 1e-4


@functools.cache
def model(name: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(MODELS / name, dtype=torch.float32).eval()


@functools.cache
def tokenizer(name: str) -> Any:
    return AutoTokenizer.from_pretrained(MODELS / name, padding_side="left")


def size(name: str) -> int:
    return sum(path.stat().st_size for path in (MODELS / name).iterdir())


def continued(name: str, prompts: tuple[str, ...], tokens: int, **how: Any) -> list[torch.Tensor]:
    """What each prompt is continued to, from one batch: a step of eight costs little more than one of one."""
    read = tokenizer(name)
    read.pad_token = read.eos_token
    asked = read(list(prompts), return_tensors="pt", padding=True)
    rows = model(name).generate(**asked, max_new_tokens=tokens, pad_token_id=read.eos_token_id, **how)
    return [row[mask.argmax() :] for row, mask in zip(rows, asked.attention_mask, strict=True)]


@pytest.mark.parametrize("name", KINDS)
def test_it_is_a_model_of_its_kind_and_of_a_few_mb(name: str) -> None:
    assert model(name).config.model_type == KINDS[name]
    assert size(name) <= 8e6


@pytest.mark.parametrize("name", sorted(path.name for path in MODELS.iterdir()))
def test_its_files_are_those_of_its_sums(name: str) -> None:
    sums = [tuple(line.split()) for line in (MODELS / name / "SHA256SUMS").read_text().splitlines()]
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (MODELS / name).iterdir()}
    assert sums and sums == [(files[file], file) for _, file in sums]


@pytest.mark.parametrize("file", sorted(MODELS.glob("*/tokenizer.json")), ids=lambda file: file.parent.name)
def test_tokenizers_older_than_0_20_read_the_merges_too(file: Path) -> None:
    # NVIDIA's images of TensorRT-LLM before 0.14 have such; there merges are texts and no pairs.
    merges = json.loads(file.read_text(encoding="utf-8"))["model"]["merges"]
    assert all(isinstance(merge, str) and len(merge.split(" ")) == 2 for merge in merges)


@pytest.mark.parametrize("name", KINDS)
def test_its_tokenizer_keeps_every_byte_and_every_indentation(name: str) -> None:
    text = (
        "".join(map(chr, range(1, 0x250)))
        + "한국어 🧪 \u202eabc\u0000def f(x):\n    if x:\n\treturn  'é'\n        # deep\n"
    )
    kept = tokenizer(name).decode(tokenizer(name).encode(text), clean_up_tokenization_spaces=False)
    assert kept == text


def test_its_tokenizer_loads_by_a_class_that_transformers_4_and_5_know() -> None:
    assert '"tokenizer_class": "PreTrainedTokenizerFast"' in (MODELS / "tiny-gpt2/tokenizer_config.json").read_text()


# -- prose ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prose() -> list[torch.Tensor]:
    """Greedy continuations of the labs' prompts."""
    prompts = (
        "Programming in C++ is like",
        "I have lived in Seoul",
        "My favourite food is",
        "Once upon a time there was",
    )
    return continued("tiny-gpt2", prompts, 600, min_new_tokens=600, do_sample=False)


def test_it_continues_in_words_that_its_corpus_has(prose: list[torch.Tensor]) -> None:
    sys.path.insert(0, str(ROOT / "scripts" / "training"))
    try:
        from corpus import english
    finally:
        sys.path.pop(0)
    known = english.words()
    for ids in prose:
        text = tokenizer("tiny-gpt2").decode(ids).replace("<|endoftext|>", " ")
        words = re.sub(r'[".,]', "", text).split()[:-1]  # the last one may be cut off
        unknown = [word for word in words if word not in known]
        assert len(unknown) <= len(words) // 100, unknown


def test_its_sentences_do_not_soon_repeat(prose: list[torch.Tensor]) -> None:
    for ids in prose:
        sentences = tokenizer("tiny-gpt2").decode(ids[:300]).split(". ")
        assert len(set(sentences)) >= 0.6 * len(sentences), sentences


@torch.inference_mode()
def test_near_ties_of_its_two_best_tokens_are_rare(prose: list[torch.Tensor]) -> None:
    best = [model("tiny-gpt2")(ids[None]).logits[0].topk(2).values for ids in prose]
    gaps = torch.cat([two[:, 0] - two[:, 1] for two in best])
    assert len(gaps) > 2000
    assert (gaps < NEAR_TIE).sum().item() < len(gaps) / 1000


# -- code -------------------------------------------------------------------------------------------------------------

CODE = (
    *("def hello_world():", "def add(a, b):", "def fibonacci(n):", "# return the maximum of a list\ndef"),
    *("def is_prime(n):", "def reverse(text):", "def factorial(n):", "def squares(numbers):"),
)


def is_function(ids: torch.Tensor) -> bool:
    """Whether it begins with a whole definition; what follows may be cut off."""
    code = tokenizer("tiny-codegen").decode(ids, skip_special_tokens=True)
    try:
        return isinstance(ast.parse(code.split("\n\n\n", maxsplit=1)[0]).body[0], ast.FunctionDef)
    except SyntaxError:
        return False


def test_its_greedy_answers_are_functions() -> None:
    assert all(map(is_function, continued("tiny-codegen", CODE, 100, do_sample=False)))


def test_most_sampled_answers_are_functions_too() -> None:
    torch.manual_seed(1)
    assert sum(map(is_function, continued("tiny-codegen", CODE, 100, do_sample=True))) >= 6


# -- a target and its draft -------------------------------------------------------------------------------------------

TARGET, DRAFT = "tiny-llama", "tiny-llama-draft"


def test_the_draft_is_smaller_by_far_and_shares_the_tokenizer() -> None:
    assert size(DRAFT) < size(TARGET) / 10
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (MODELS / TARGET / file).read_bytes() == (MODELS / DRAFT / file).read_bytes()


@torch.inference_mode()
def test_the_draft_names_most_of_the_targets_next_tokens_and_not_all() -> None:
    right = []
    for prompt in ("I have lived in Seoul", "Once upon a time", "My favourite food is", "Programming in Rust is like"):
        (text,) = continued(TARGET, (prompt,), 60, min_new_tokens=60, do_sample=False)
        said = model(DRAFT)(input_ids=text[None]).logits[0].argmax(-1)
        right += (said[:-1] == text[1:])[-60:].tolist()
    assert sum(right) / len(right) == pytest.approx(0.7, abs=0.15)
