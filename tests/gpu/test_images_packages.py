"""Our models on the Python of 0.5.0's image (3.10), and with the transformers of the images, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from environments import COSTLY, OURS, environment, packages, python310

from labctl.artifacts import weights
from labctl.workspace import Workspace

# Before, between and after the versions in which transformers changed what our code depends on: 4.39 (a stop for each
# row) and 4.56 (`dtype`). The first is that of 0.5.0's own list. tokenizers is the one that each of them takes.
TRANSFORMERS = {"4.31.0": "0.13.3", "4.51.3": "0.21.4", "4.57.6": "0.22.1"}
HUB = "huggingface-hub==0.36.2"
# What a model without PyTorch computes with, and what its tests need.
ON_310 = ("numpy==1.26.4", "tokenizers==0.22.2", "tritonclient[grpc]", "pydantic", "pytest")
# Tests of the models that compute without PyTorch, which run there as they are.
TESTS = {
    "test_model_errors.py": "processing or tokenizer or tensorrt_llm",
    "test_llm_scheduler.py": "",
    "test_llm_request.py": "",
    "test_labserve_prompts.py": "",
    "test_vocabulary.py": "",
}
pytestmark = [pytest.mark.proof, COSTLY]


def ran(argv: list[str], *paths: Path) -> str:
    """Its output, with these folders before the tests' and the sources on PYTHONPATH."""
    where = os.pathsep.join(map(str, [*paths, ROOT / "tests" / "helpers", ROOT / "src"]))
    surroundings = {**os.environ, "PYTHONPATH": where, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=400, env=surroundings, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def old(cache: Path) -> str:
    """Python 3.10 with what a model without PyTorch computes with."""
    return environment(cache, "python3.10", python310(), *ON_310)


def test_every_module_and_model_can_be_imported_on_python_310(old: str) -> None:
    imported = int(ran([old, "tests/gpu/old_python.py"]))
    models = list((ROOT / "model_repos").glob("*/*/1/model.py"))
    sources = [path for package in ("labsched", "labserve") for path in (ROOT / "src" / package).rglob("*.py")]
    assert imported == len(sources) + len(models)


def compute(python: str, tests: Collection[str], *only: str) -> None:
    """Run files of tests/unit on that Python."""
    argv = [python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    assert " passed" in ran([*argv, *(str(next((ROOT / "tests" / "unit").rglob(name))) for name in tests), *only])


def test_models_without_pytorch_compute_on_python_310(old: str) -> None:
    compute(old, [name for name, only in TESTS.items() if not only])


def test_models_without_pytorch_refuse_bad_input_on_python_310(old: str) -> None:
    for name, only in TESTS.items():
        if only:
            compute(old, [name], "-k", only, "-p", "model_cases")  # their fixture, which a conftest.py has otherwise


@pytest.fixture(scope="module")
def answers(cache: Path) -> tuple[Path, dict[str, Any]]:
    """A tiny Llama, and what it answers with the transformers of the project."""
    folder = weights.parse_source("random:tiny-llama").make(Workspace(ROOT, cache), print)
    return folder, json.loads(ran([OURS, "tests/gpu/asked_llama.py", str(folder)]))[1]


@pytest.mark.parametrize("number", TRANSFORMERS)
def test_llama_answers_the_same_with_the_transformers_of_an_image(
    cache: Path, answers: tuple[Path, dict[str, Any]], number: str
) -> None:
    folder, ours = answers
    wanted = (f"transformers=={number}", f"tokenizers=={TRANSFORMERS[number]}", HUB)
    said = ran([OURS, "tests/gpu/asked_llama.py", str(folder)], packages(cache, OURS, *wanted))
    assert json.loads(said) == [number, ours]


@pytest.mark.parametrize("number", TRANSFORMERS)
def test_the_type_of_random_weights_is_read_by_the_transformers_of_an_image(cache: Path, number: str) -> None:
    """A builder of before transformers 4.56 makes weights of the type in ``torch_dtype``, without a fallback."""
    folder = weights.parse_source("random:tiny-llama@float16").make(Workspace(ROOT, cache), print)
    code = (
        "import sys, transformers; found = transformers.AutoConfig.from_pretrained(sys.argv[1]); "
        "print(transformers.__version__, found.torch_dtype, found.to_dict().get('rope_theta'))"
    )
    wanted = (f"transformers=={number}", f"tokenizers=={TRANSFORMERS[number]}", HUB)
    said = ran([OURS, "-c", code, str(folder)], packages(cache, OURS, *wanted))
    assert said.split() == [number, "torch.float16", "10000.0"]
