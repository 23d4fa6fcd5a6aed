"""Choosing tokens: as often as their probability says, repeatable; test_sampling_everywhere.py tells which can be."""

import torch

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
