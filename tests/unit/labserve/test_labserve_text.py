"""From scores to tokens to text; which tokens can be chosen, test_sampling_everywhere.py tells."""

import time
from typing import Any

import labserve_tiny
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labsched.log.steplog import StepLog
from labserve.text.detok import Detokenizer
from labserve.text.prompts import open_tokenizer
from labserve.text.sampling import Sampler, choose

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))


def drawn(sampler: Sampler, times: int = 400) -> list[int]:
    return [sampler.draw(LOGITS) for _ in range(times)]


def test_rows_of_a_batch_are_chosen_each_in_its_own_way() -> None:
    only_best = Sampler(temperature=5.0, top_k=1)
    assert choose(torch.stack([-LOGITS, LOGITS]), [Sampler(), only_best]) == [3, 0]


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    tokens = drawn(Sampler(temperature=1.0, seed=5), times=4000)
    shares = torch.bincount(torch.tensor(tokens), minlength=4) / len(tokens)
    assert torch.allclose(shares, LOGITS.exp(), atol=0.03)


def test_one_seed_gives_one_series_and_another_seed_another() -> None:
    assert drawn(Sampler(1.0, seed=3), 50) == drawn(Sampler(1.0, seed=3), 50)
    assert drawn(Sampler(1.0, seed=3), 50) != drawn(Sampler(1.0, seed=4), 50)


def test_without_a_seed_two_requests_differ() -> None:
    assert drawn(Sampler(1.0), 60) != drawn(Sampler(1.0), 60)


def test_scores_of_numpy_and_of_pytorch_give_the_same_tokens() -> None:
    ours, theirs = (Sampler(0.9, top_k=3, top_p=0.9, seed=8) for _ in range(2))
    assert [ours.draw(LOGITS) for _ in range(50)] == [theirs.draw(LOGITS.numpy()) for _ in range(50)]
    assert choose(LOGITS[None], [Sampler()]) == choose(LOGITS[None].numpy(), [Sampler()]) == [0]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return open_tokenizer(str(labserve_tiny.make(tmp_path_factory.mktemp("tiny"))))


def pieces(tokenizer: Any, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [detokenizer.add(token, last=place == len(ids) - 1) for place, token in enumerate(ids)]


@given(st.lists(st.integers(0, 339), min_size=1, max_size=60))
def test_pieces_of_any_tokens_join_to_what_decode_gives(tokenizer: Any, ids: list[int]) -> None:
    """Also inside a character, and beyond the vocabulary."""
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=False)


def test_a_real_text_is_never_late_by_more_than_one_character(tokenizer: Any) -> None:
    written = "naïve café \N{GRINNING FACE} in Seoul, 서울"
    ids, shown = tokenizer.encode(written).ids, ""
    for place, piece in enumerate(pieces(tokenizer, ids)):
        shown += piece
        known = tokenizer.decode(ids[: place + 1], skip_special_tokens=False)
        assert len(known.rstrip("\N{REPLACEMENT CHARACTER}")) == len(shown)
    assert shown == written


@pytest.mark.parametrize("folder", ["", "/proc/no/such/folder"])
def test_without_a_run_folder_nothing_is_logged_and_nothing_fails(folder: Any) -> None:
    log = StepLog(folder, "some-model", "0_0")
    log.write(time.monotonic(), ["1"])
    log.close()
