"""Packed weights and bf16 are another way to read the same model, and what cannot be had is refused by name."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from labserve.gpt2 import precision
from labserve.gpt2.decoders import CachedDecoder, step
from labserve.gpt2.linear import Linear
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence
from labserve.text.sampling import Sampler

VOCABULARY, WIDTH = 1000, 320  # each of its matrices but one is large enough to be packed


class Mute:
    """A detokenizer for ids that no tokenizer knows."""

    def add(self, token: int, last: bool = False) -> str:
        return ""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=64, n_embd=WIDTH, n_layer=2, n_head=4, initializer_range=0.1)
    folder = tmp_path_factory.mktemp("packed")
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def sequences(count: int) -> list[Sequence]:
    chance = random.Random(count)
    made = []
    for _ in range(count):
        prompt = [chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 20))]
        detokenizer: Any = Mute()
        made.append(Sequence(prompt, len(prompt), len(prompt) + 9, None, Sampler(), detokenizer))
    return made


@pytest.mark.parametrize(("slots", "most"), [(1, 8), (8, 8), (9, 16), (64, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_matrix_gives_the_same_products_at_any_number_of_rows(bias: bool, slots: int, most: int) -> None:
    torch.manual_seed(0)
    weight, offset = torch.randn(WIDTH, VOCABULARY), torch.randn(VOCABULARY)
    packed = Linear(weight, offset if bias else None)
    packed.pack(slots)
    assert packed.rows == most
    for rows in (1, 2, 7, 8, 9, 16, 17, 33, 100):
        x = torch.randn(rows, WIDTH)
        expected = x @ weight + (offset if bias else 0)
        torch.testing.assert_close(packed(x), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(packed(x[None]), expected[None], atol=1e-4, rtol=1e-4)


def test_a_small_matrix_is_left_as_it_is() -> None:
    small = Linear(torch.randn(100, 100))
    small.pack(8)
    assert small.rows == 0


def test_a_row_of_a_packed_matrix_is_the_same_in_any_company() -> None:
    """To the last bit: an answer does not depend on how many others are in its batch."""
    torch.manual_seed(1)
    packed = Linear(torch.randn(WIDTH, VOCABULARY), torch.randn(VOCABULARY))
    packed.pack(8)
    x = torch.randn(8, WIDTH)
    for rows in range(2, 8):
        assert torch.equal(packed(x[:rows]), packed(x)[:rows])


@pytest.mark.parametrize("company", [1, 3, 8])
def test_a_packed_model_scores_each_text_as_hugging_face_does(folder: Path, company: int) -> None:
    reference = GPT2LMHeadModel.from_pretrained(folder).eval()
    decoder, batch = CachedDecoder(GPT2(str(folder), precision="fp32"), company), sequences(company)
    for _ in range(4):
        step(decoder, batch)
    scores = decoder.logits(batch)
    for sequence, ours in zip(batch, scores, strict=True):
        with torch.inference_mode():
            theirs = reference(torch.tensor([sequence.ids])).logits[0, -1]
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=1e-4)


def test_bf16_gives_what_hugging_face_gives_in_bf16_but_for_its_rounding(folder: Path) -> None:
    """Also on a processor that has to imitate bf16."""
    model = GPT2(str(folder), precision="bf16")
    assert model.dtype == torch.bfloat16
    decoder, batch = CachedDecoder(model, 3), sequences(3)
    assert decoder.cache.keys.dtype == torch.bfloat16
    exact = GPT2LMHeadModel.from_pretrained(folder).eval()
    rounded = GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16).eval()
    for _ in range(4):
        step(decoder, batch)
    scores = decoder.logits(batch)
    for sequence, ours in zip(batch, scores, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([sequence.ids])
            right, theirs = exact(ids).logits[0, -1], rounded(ids).logits[0, -1].float()
        assert (ours - right).norm() < 2 * (theirs - right).norm()
        assert torch.cosine_similarity(ours, right, dim=0) > 0.999


@pytest.mark.parametrize(
    ("word", "device", "weights", "has", "chosen"),
    [
        ("auto", "cpu", precision.LARGE, True, torch.bfloat16),
        ("auto", "cpu", precision.LARGE, False, torch.float32),
        ("auto", "cpu", precision.LARGE - 1, True, torch.float32),  # the shipped model: as exact everywhere
        ("auto", "cuda:0", precision.LARGE, False, torch.float16),
        ("fp32", "cuda:0", precision.LARGE, True, torch.float32),
        ("bf16", "cpu", 1, False, torch.bfloat16),
    ],
)
def test_auto_is_what_the_processor_computes_fast(
    monkeypatch: pytest.MonkeyPatch, word: str, device: str, weights: int, has: bool, chosen: torch.dtype
) -> None:
    monkeypatch.setattr(precision, "has_bf16", lambda: has)
    assert precision.dtype_of(word, device, weights) == chosen


def test_another_precision_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(ValueError, match="precision: 'int4' is none of auto, fp32, bf16"):
        GPT2(str(folder), precision="int4")
