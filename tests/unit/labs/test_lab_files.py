"""What labs and scripts do beside their servers, and that a lab's model can be read at a glance."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest
from checkout import ROOT


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def module(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_").replace("-", "_"), ROOT / path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


@pytest.mark.parametrize(
    ("step_s", "tokens", "said"),
    [(0.02, 100, "takes 2.0 s"), (0.001, 400, "none is longer than 400 tokens"), (0.2, 64, "takes 12.8 s")],
)
def test_lab_02_says_how_long_its_answers_take_on_this_machine(step_s: float, tokens: int, said: str) -> None:
    made, sentence = module("labs/02-iterative-scheduling/client.py").length(step_s, 2.0)
    assert made == tokens and said in sentence
    assert f"{tokens * step_s:.1f} s" in sentence


def test_lab_07_says_an_error_once_whatever_sequence_it_is_of() -> None:
    reasons = {f"inference request for sequence {n} must specify the START flag": 2 for n in range(1000, 1044)}
    grouped = module("labs/07-scale-out/lessons.py").grouped({**reasons, "StatusCode.UNAVAILABLE": 1})
    assert grouped == Counter(
        {"inference request for sequence N must specify the START flag": 88, "StatusCode.UNAVAILABLE": 1}
    )


MODELS = sorted([*ROOT.glob("model_repos/*/*/1/model.py"), *ROOT.glob("labs/*/models/*/1/model.py")])


@pytest.mark.parametrize("path", MODELS, ids=named)
def test_a_model_of_a_lab_is_two_files(path: Path) -> None:
    files = {str(file.relative_to(path.parents[1])) for file in path.parents[1].rglob("*") if file.suffix != ".pyc"}
    upstreams = {"1/model.json"} if path.parents[1].name == "vllm_model" else set()  # as NVIDIA's vllm_backend has it
    assert files - {"__pycache__", "1/__pycache__", "1"} == {"config.pbtxt", "1/model.py"} | upstreams
