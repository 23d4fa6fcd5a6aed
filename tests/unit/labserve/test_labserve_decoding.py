"""Greedy decoding of any batch, however it is composed, gives what `generate` gives for each prompt alone."""

import functools
import random
from typing import Any

import labserve_tiny
import pytest
import torch
from transformers import GPT2LMHeadModel

from labserve.gpt2.decoders import CachedDecoder, RecomputingDecoder, step
from labserve.gpt2.model import GPT2
from labserve.gpt2.sequences import Sequence, new_sequence
from labserve.text.prompts import open_tokenizer

SLOTS = 4
NEAR_TIE = 1e-4
WORDS = ["the", "quick", "brown", "fox", "has", "lived", "in", "Seoul", "like", "stone", "é", "😀"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return labserve_tiny.make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(folder: Any) -> Any:
    return open_tokenizer(str(folder))


@pytest.fixture(scope="module")
def reference(folder: Any) -> Any:
    return GPT2LMHeadModel.from_pretrained(folder).eval()


@pytest.fixture(params=["cached", "recomputing"])
def decoder(request: Any, folder: Any) -> Any:
    model = GPT2(str(folder))
    return CachedDecoder(model, SLOTS) if request.param == "cached" else RecomputingDecoder(model)


def sequence(tokenizer: Any, text: str, max_tokens: int, extra: str = "") -> Sequence:
    parameters = f'{{"max_tokens": {max_tokens}, "ignore_eos": true{extra}}}'
    return new_sequence(text.encode(), parameters, tokenizer, 128)


@functools.cache
def alone(model: Any, ids: tuple[int, ...], more: int) -> list[int]:
    """The greedy continuation of a prompt on its own, by transformers' generate; both decoders are asked for it."""
    prompt = torch.tensor([ids])
    whole = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=more,
        min_new_tokens=more,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=-1,
    )
    return whole[0].tolist()


def assert_same(model: Any, made: Sequence) -> None:
    expected = alone(model, tuple(made.ids[: made.prompt]), len(made.ids) - made.prompt)
    assert len(expected) == len(made.ids)
    for place, (ours, theirs) in enumerate(zip(made.ids, expected, strict=True)):
        if ours != theirs:
            best, second = model(torch.tensor([expected[:place]])).logits[0, -1].topk(2).values.tolist()
            assert best - second < NEAR_TIE, f"token {place} differs and is no near-tie"
            print(f"near-tie at token {place}: compared up to there")
            return


@pytest.mark.parametrize("seed", range(6))
def test_any_mix_of_arrivals_and_lengths_gives_what_generate_gives(
    decoder: Any, tokenizer: Any, reference: Any, seed: int
) -> None:
    chance = random.Random(seed)
    made = [
        sequence(tokenizer, " ".join(chance.choices(WORDS, k=chance.randint(1, 12))), chance.randint(1, 30))
        for _ in range(12)
    ]
    waiting = list(made)
    live: list[Sequence] = []
    while waiting or live:
        while waiting and len(live) < SLOTS and chance.random() < 0.6:
            live.append(waiting.pop())
        batch = chance.sample(live, chance.randint(1, len(live))) if live else []
        if batch:
            step(decoder, batch)
        for done in [s for s in batch if s.finished]:
            decoder.release(done)
            live.remove(done)
    for each in made:
        assert_same(reference, each)


def test_a_sequence_that_lost_its_slot_is_computed_again_and_goes_on_the_same(
    folder: Any, tokenizer: Any, reference: Any
) -> None:
    decoder = CachedDecoder(GPT2(str(folder)), 1)
    made = sequence(tokenizer, "the quick brown fox", 12)
    for number in range(12):
        if number == 5:
            decoder.release(made)
        step(decoder, [made])
    assert_same(reference, made)


def test_more_sequences_than_slots_is_an_error_that_names_the_slots(folder: Any, tokenizer: Any) -> None:
    decoder = CachedDecoder(GPT2(str(folder)), 1)
    first, second = step(decoder, [sequence(tokenizer, "fox", 2), sequence(tokenizer, "dog", 2)])
    assert isinstance(first, str)
    assert isinstance(second, Exception) and "all 1 slots" in str(second)


def test_the_caches_memory_is_what_slots_and_length_say(folder: Any) -> None:
    cache = CachedDecoder(GPT2(str(folder)), SLOTS).cache
    layers, width, floats = 2, 48, 4
    assert cache.nbytes == 2 * layers * SLOTS * 128 * width * floats


def test_the_end_token_ends_a_sequence_unless_ignored(tokenizer: Any) -> None:
    made = new_sequence(b"fox", '{"max_tokens": 9}', tokenizer, 128, end_id=0)
    assert made.accept(0) == "<|endoftext|>"
    assert made.finished
    ignoring = sequence(tokenizer, "fox", 9)
    ignoring.accept(0)
    assert not ignoring.finished


def test_a_seeded_sample_is_the_same_alone_and_in_any_company(decoder: Any, tokenizer: Any) -> None:
    extra = ', "seed": 11, "temperature": 0.9, "top_k": 40, "top_p": 0.95'

    def run(company: int) -> list[int]:
        sampled = sequence(tokenizer, "the quick", 20, extra)
        others = [sequence(tokenizer, "a small stone", 20, ', "temperature": 2.0') for _ in range(company)]
        for _ in range(20):
            step(decoder, [*others, sampled])
        for each in (sampled, *others):
            decoder.release(each)
        return sampled.ids

    assert run(0) == run(1) == run(3)
