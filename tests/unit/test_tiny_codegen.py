"""The shipped code model: small, whole, and it writes Python."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "models" / "tiny-codegen"
PROMPTS = (
    "def hello_world():",
    "def add(a, b):",
    "def fibonacci(n):",
    "# return the maximum of a list\ndef",
    "def is_prime(n):",
    "def reverse(text):",
    "def factorial(n):",
    "def squares(numbers):",
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    torch.set_num_threads(threads)


def continued(model: Any, tokenizer: Any, prompt: str, **how: Any) -> str:
    ids = tokenizer(prompt, return_tensors="pt").input_ids
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=100, pad_token_id=tokenizer.eos_token_id, **how
    )
    return str(tokenizer.decode(out[0], skip_special_tokens=True))


def first_function(code: str) -> ast.stmt:
    """The first definition of ``code``, without what follows it (which may be cut off). Raises SyntaxError."""
    return ast.parse(code.split("\n\n\n", maxsplit=1)[0]).body[0]


def test_it_is_a_codegen_of_a_few_mb(model: Any) -> None:
    assert model.config.model_type == "codegen"
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 8e6


def test_its_files_are_those_of_its_sums() -> None:
    for line in (FOLDER / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_its_tokenizer_keeps_every_text_and_indentation(tokenizer: Any) -> None:
    text = "def f(x):\n    if x:\n\treturn  'é 한국 🧪'\n            # deep\n"
    assert tokenizer.decode(tokenizer.encode(text), clean_up_tokenization_spaces=False) == text


@pytest.mark.parametrize("prompt", PROMPTS)
def test_its_greedy_answer_is_a_function(model: Any, tokenizer: Any, prompt: str) -> None:
    code = continued(model, tokenizer, prompt, do_sample=False)
    assert isinstance(first_function(code), ast.FunctionDef), code


def test_most_sampled_answers_are_functions_too(model: Any, tokenizer: Any) -> None:
    torch.manual_seed(1)
    right = 0
    for prompt in PROMPTS:
        try:
            right += isinstance(first_function(continued(model, tokenizer, prompt, do_sample=True)), ast.FunctionDef)
        except SyntaxError:
            continue
    assert right >= 6
