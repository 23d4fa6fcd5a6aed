"""Packed weights, fp16 and bf16 are another way to read the same model, and what cannot be had is refused by name."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from labserve_tiny import random_gpt2, sequence
from transformers import GPT2LMHeadModel

from labserve.gpt2 import linear
from labserve.gpt2.decoders import CachedDecoder
from labserve.gpt2.linear import Linear
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence

VOCABULARY, WIDTH = 1000, 320  # each of its matrices but one is large enough to be packed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": WIDTH, "initializer_range": 0.1}
    return random_gpt2(tmp_path_factory.mktemp("packed"), 3, **shape)


def sequences(count: int) -> list[Sequence]:
    chance = random.Random(count)
    return [sequence([chance.randrange(VOCABULARY) for _ in range(chance.randint(1, 20))]) for _ in range(count)]


@pytest.mark.parametrize(
    ("slots", "kept", "most"),
    [*((slots, torch.float32, most) for slots, most in [(1, 8), (8, 8), (9, 16), (64, 16)]), (8, torch.float16, 64)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_matrix_gives_the_same_products_at_any_number_of_rows(
    bias: bool, slots: int, kept: torch.dtype, most: int
) -> None:
    """In fp16 those of the rounded weights."""
    torch.manual_seed(0)
    weight, offset = torch.randn(WIDTH, VOCABULARY).to(kept).float(), torch.randn(VOCABULARY) if bias else None
    packed = Linear(weight, offset)
    packed.pack(slots, kept)
    assert packed.rows == most
    for rows in (1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 100):
        x = torch.randn(rows, WIDTH)
        expected = x @ weight + (0 if offset is None else offset)
        torch.testing.assert_close(packed(x), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(packed(x[None]), expected[None], atol=1e-4, rtol=1e-4)


def test_a_small_matrix_is_left_as_it_is() -> None:
    small = Linear(torch.randn(100, 100))
    small.pack(8)
    assert small.rows == 0


@pytest.mark.parametrize(("kept", "fewest", "most"), [(torch.float32, 2, 8), (torch.float16, 1, 64)])
def test_a_row_of_a_packed_matrix_is_the_same_in_any_company(kept: torch.dtype, fewest: int, most: int) -> None:
    """To the last bit: an answer does not depend on how many others are in its batch."""
    torch.manual_seed(1)
    packed = Linear(torch.randn(WIDTH, VOCABULARY), torch.randn(VOCABULARY))
    packed.pack(8, kept)
    x = torch.randn(most, WIDTH)
    for rows in range(fewest, most):
        assert torch.equal(packed(x[:rows]), packed(x)[:rows])


@pytest.mark.parametrize("company", [1, 3, 8])
@pytest.mark.parametrize("word", ["fp32", "fp16"])
def test_a_packed_model_scores_each_text_as_hugging_face_does(folder: Path, word: str, company: int) -> None:
    """In fp16 as Hugging Face does in fp32 with the weights rounded: prompts and single tokens alike."""
    reference = GPT2LMHeadModel.from_pretrained(folder).eval()
    if word == "fp16":
        reference = reference.half().float()
    decoder, batch = CachedDecoder(GPT2(str(folder), precision=word), company), sequences(company)
    for _ in range(4):
        decoder.step(batch)
    scores = decoder.logits(batch)
    for one, ours in zip(batch, scores, strict=True):
        with torch.inference_mode():
            theirs = reference(torch.tensor([one.ids])).logits[0, -1]
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
        decoder.step(batch)
    scores = decoder.logits(batch)
    for one, ours in zip(batch, scores, strict=True):
        with torch.inference_mode():
            ids = torch.tensor([one.ids])
            right, theirs = exact(ids).logits[0, -1], rounded(ids).logits[0, -1].float()
        assert (ours - right).norm() < 2 * (theirs - right).norm()
        assert torch.cosine_similarity(ours, right, dim=0) > 0.999


@pytest.mark.parametrize(
    ("word", "device", "weights", "bf16", "fp16", "chosen"),
    [
        ("auto", "cpu", linear.MANY, True, True, linear.BF16),
        ("auto", "cpu", linear.MANY, False, True, linear.FP16_WEIGHTS),
        ("auto", "cpu", linear.MANY, False, False, linear.FP32),
        ("auto", "cpu", linear.MANY - 1, True, True, linear.FP32),  # the shipped model: as exact everywhere
        ("auto", "cuda:0", linear.MANY, False, False, linear.FP16),
        ("fp16", "cuda:0", 1, False, False, linear.FP16),
        ("fp16", "cpu", 1, True, True, linear.FP16_WEIGHTS),
        ("fp32", "cuda:0", linear.MANY, True, True, linear.FP32),
        ("bf16", "cpu", 1, False, False, linear.BF16),
    ],
)
def test_auto_is_what_the_processor_computes_fast(
    monkeypatch: pytest.MonkeyPatch, word: str, device: str, weights: int, bf16: bool, fp16: bool, chosen: Any
) -> None:
    monkeypatch.setattr(linear, "has_bf16", lambda: bf16)
    monkeypatch.setattr(linear, "reads_fp16", lambda: fp16)
    assert linear.precision_of(word, device, weights) == chosen


def test_what_it_computes_in_is_told_and_another_precision_is_refused_by_name(folder: Path) -> None:
    assert GPT2(str(folder), precision="fp16").describe().endswith("float32 on cpu, weights rounded to float16")
    assert GPT2(str(folder), precision="fp32").describe().endswith("float32 on cpu")
    with pytest.raises(ValueError, match="precision: 'int4' is not one of auto, fp32, bf16, fp16"):
        GPT2(str(folder), precision="int4")


def test_fp16_that_the_processor_cannot_read_is_rounded_all_the_same_and_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers, and so the same answers, as where it is read: only the memory is not saved."""
    there = CachedDecoder(GPT2(str(folder), precision="fp16"), 3).logits(sequences(3))
    monkeypatch.setattr(linear, "reads_fp16", lambda: False)
    monkeypatch.setattr(linear, "reads_fp16", lambda: False)
    model = GPT2(str(folder), precision="fp16")
    assert "this processor does not read fp16" in model.shortfall and model.describe().endswith(model.shortfall)
    torch.testing.assert_close(CachedDecoder(model, 3).logits(sequences(3)), there, rtol=1e-4, atol=1e-4)


def test_bf16_that_the_processor_imitates_is_told_and_fp32_has_nothing_to_tell(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("has_bf16", "reads_fp16"):
        monkeypatch.setattr(linear, name, lambda: False)
    assert "imitates it" in GPT2(str(folder), precision="bf16").shortfall
    assert GPT2(str(folder), precision="fp32").shortfall == ""


def test_a_pytorch_that_cannot_be_asked_reads_no_fp16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert linear.reads_fp16() is False


def test_the_memory_of_the_cache_is_what_slots_and_length_say(folder: Path) -> None:
    layers, context, floats = 2, 64, 4
    assert CachedDecoder(GPT2(str(folder)), 3).cache.nbytes == 2 * layers * 3 * context * WIDTH * floats
