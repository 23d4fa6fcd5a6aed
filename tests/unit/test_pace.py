"""A GPU in slow motion: the roofline against numbers worked out by hand, and the scheduler that waits for it."""

from __future__ import annotations

import time

import pytest
from counting_engine import CountingEngine

from benchmarks.pace import Model
from labsched.kv_budget import KVBudget
from labsched.pace import DEVICES, SHAPES, Decoder, Pace, Work
from labsched.policy import Policy
from labsched.request import Request
from labsched.scheduler import Scheduler


def paced(device: str = "h100", shape: str = "llama-2-7b", slower: float = 1.0) -> Pace:
    pace = Pace.of(device, shape, str(slower))
    assert pace
    return pace


@pytest.mark.parametrize(
    ("shape", "published", "embeddings", "kv_bytes"),
    [("llama-2-7b", 6_738_415_616, 32_000 * 4096, 2**19), ("llama-3.1-8b", 8_030_261_248, 128_256 * 4096, 2**17)],
)
def test_a_shape_has_the_published_parameters_without_embeddings_and_norms(
    shape: str, published: int, embeddings: int, kv_bytes: int
) -> None:
    assert SHAPES[shape].parameters == published - embeddings - 65 * 4096  # two norms a layer, and the last
    assert SHAPES[shape].kv_values * 2 == kv_bytes


def test_a_decode_step_takes_as_long_as_weights_and_keys_and_values_need_to_be_read() -> None:
    # 13.214 GB of weights and 1,000 x 0.5 MiB at 3.35 TB/s
    assert paced().seconds([Work(1, 1000)]) == pytest.approx((13.214154752e9 + 1000 * 2**19) / 3.35e12)
    assert paced("h200").seconds([Work(1, 1000)]) == pytest.approx((13.214154752e9 + 1000 * 2**19) / 4.8e12)


def test_a_long_prompt_takes_as_long_as_its_arithmetic() -> None:
    # 2 operations a weight, and for the scores 4 x 32 layers x 4096 for each of 1000 x 1001 / 2 pairs of tokens
    flops = 2 * 6.607077376e9 * 1000 + 4 * 32 * 4096 * 1000 * 1001 / 2
    assert paced().seconds([Work(1000, 1000)]) == pytest.approx(flops / 989.4e12 + 1000 * 2**19 / 3.35e12)


def test_two_pieces_of_a_prompt_need_the_arithmetic_of_the_whole() -> None:
    pace, alone = paced(), paced().seconds([Work(4000, 4000)])
    pieces = pace.seconds([Work(2000, 2000)]) + pace.seconds([Work(2000, 4000)])
    assert pieces - 2000 * 2**19 / 3.35e12 == pytest.approx(alone)  # the first half's keys and values are read again


def test_a_batch_of_64_short_requests_costs_little_more_than_one() -> None:
    assert paced().seconds([Work(1, 100)] * 64) < 1.3 * paced().seconds([Work(1, 100)])


def test_the_knee_of_a_chunk_is_where_the_arithmetic_outlasts_the_weights() -> None:
    flops, bandwidth = DEVICES["h100"]
    knee = int(flops / bandwidth)  # 2 operations and 2 bytes for each weight: 295 tokens
    assert paced().seconds([Work(knee - 10, knee)]) < 1.02 * paced().seconds([Work(1, knee)])
    assert paced().seconds([Work(2 * knee, 2 * knee)]) > 1.8 * paced().seconds([Work(1, knee)])


def test_a_step_without_tokens_takes_no_time() -> None:
    assert paced().seconds([Work(0, 50)]) == 0


@pytest.mark.parametrize("words", [("h100", "gpt-9"), ("a100", "llama-2-7b")])
def test_an_unknown_pace_is_refused_with_those_that_are_known(words: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="h100, h200; llama-2-7b"):
        Pace.of(*words, "1")
    assert Pace.of("none", "", "") is None


def test_the_scheduler_gives_each_step_the_time_of_its_own_work() -> None:
    scheduler = Scheduler(CountingEngine(step_tokens=20), KVBudget(64, 2), Policy.GUARANTEED_NO_EVICT, 4, False)
    scheduler.pace = paced(slower=3.0)
    for name, prompt in (("a", 10), ("b", 3)):
        scheduler.submit(Request(name, [0] * prompt, 3))
    began = time.monotonic()
    steps = [scheduler.step() for _ in range(3)]
    assert time.monotonic() - began >= sum(step.paced_s or 0.0 for step in steps)
    work = [[Work(10, 10), Work(3, 3)], [Work(1, 11), Work(1, 4)], [Work(1, 12), Work(1, 5)]]
    assert [step.paced_s for step in steps] == pytest.approx([3 * paced().seconds(one) for one in work])


@pytest.mark.parametrize("kv_width", [512, 128])
def test_what_is_measured_beside_a_gpu_reads_the_shape_s_parameters_and_makes_a_token_for_each(kv_width: int) -> None:
    decoder = Decoder(layers=2, width=512, kv_width=kv_width, inner=300, vocabulary=500)
    model = Model(decoder, "cpu")
    read = [weights for layer in model.weights for weights in layer] + [model.head]
    assert sum(weights.numel() for weights in read) == decoder.parameters
    for tokens in (1, 20):
        assert model.step(batch=3, tokens=tokens, context=20)().shape == (3,)
