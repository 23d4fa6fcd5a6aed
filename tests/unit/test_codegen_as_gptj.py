"""CodeGen in GPT-J's order computes what CodeGen computes, so that a builder that knows GPT-J builds the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from labserve.codegen.as_gptj import convert, split

CODEGEN = Path(__file__).resolve().parents[2] / "labs" / "shared" / "models" / "tiny-codegen"


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gptj")
    convert(CODEGEN, folder)
    return folder


def logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        found: torch.Tensor = model(ids).logits
    return found


def test_the_logits_are_the_same(converted: Path) -> None:
    assert json.loads((converted / "config.json").read_text())["architectures"] == ["GPTJForCausalLM"]
    ids = torch.randint(1, 800, (2, 40), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(logits(converted, ids), logits(CODEGEN, ids), rtol=0, atol=1e-5)


def test_the_tokenizer_comes_along_for_calibration(converted: Path) -> None:
    assert (converted / "tokenizer.json").read_bytes() == (CODEGEN / "tokenizer.json").read_bytes()


def test_what_is_gptj_already_stays_as_it_is(converted: Path, tmp_path: Path) -> None:
    convert(converted, tmp_path)
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(logits(tmp_path, ids), logits(converted, ids), rtol=0, atol=0)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither CodeGen nor GPT-J, but gpt2"):
        convert(CODEGEN.with_name("tiny-gpt2"), tmp_path)


def test_each_accelerators_share_holds_queries_values_and_keys_in_this_order() -> None:
    rows = torch.arange(12 * 4).reshape(12, 4)  # four shares of three rows, one for each
    parts = split(rows)
    assert [parts[name][:, 0].tolist() for name in ("q_proj", "v_proj", "k_proj")] == [
        [0, 12, 24, 36],
        [4, 16, 28, 40],
        [8, 20, 32, 44],
    ]
