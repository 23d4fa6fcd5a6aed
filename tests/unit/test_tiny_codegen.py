"""The shipped code model: small, whole, and it writes Python."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "labs" / "shared" / "models" / "tiny-codegen"
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
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


def continued(model: Any, tokenizer: Any, **how: Any) -> dict[str, str]:
    """Every prompt with what follows it, from one batch: a step of eight costs little more than one of one."""
    tokenizer.padding_side, tokenizer.pad_token = "left", tokenizer.eos_token
    asked = tokenizer(list(PROMPTS), return_tensors="pt", padding=True)
    out = model.generate(**asked, max_new_tokens=100, pad_token_id=tokenizer.eos_token_id, **how)
    return dict(zip(PROMPTS, tokenizer.batch_decode(out, skip_special_tokens=True), strict=True))


@pytest.fixture(scope="module")
def greedy(model: Any, tokenizer: Any) -> dict[str, str]:
    return continued(model, tokenizer, do_sample=False)


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
def test_its_greedy_answer_is_a_function(greedy: dict[str, str], prompt: str) -> None:
    code = greedy[prompt]
    assert isinstance(first_function(code), ast.FunctionDef), code


def test_most_sampled_answers_are_functions_too(model: Any, tokenizer: Any) -> None:
    torch.manual_seed(1)
    right = 0
    for code in continued(model, tokenizer, do_sample=True).values():
        try:
            right += isinstance(first_function(code), ast.FunctionDef)
        except SyntaxError:
            continue
    assert right >= 6
