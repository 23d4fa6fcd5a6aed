"""A batch of prompts of different lengths, from which rows leave: as if each had been alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from labserve.codegen import batch_decoder
from labserve.codegen.batch_decoder import BatchDecoder

FOLDER = Path(__file__).resolve().parents[2] / "labs" / "shared" / "models" / "tiny-codegen"
PROMPTS = [[5, 6, 7, 8, 9, 10], [11], [12, 13, 14]]


@pytest.fixture(scope="module")
def decoder() -> Iterator[BatchDecoder]:
    threads = torch.get_num_threads()
    yield batch_decoder.load_batch_decoder(str(FOLDER), "cpu", 1, exact=True)
    torch.set_num_threads(threads)


def greedy(decoder: BatchDecoder, prompts: list[list[int]], limits: list[int]) -> list[list[int]]:
    rows = [list(prompt) for prompt in prompts]
    running = list(range(len(rows)))
    logits = decoder.begin(prompts)
    while True:
        for place, token in zip(running, logits.argmax(-1).tolist(), strict=True):
            rows[place].append(token)
        keep = [at for at, place in enumerate(running) if len(rows[place]) < len(prompts[place]) + limits[place]]
        if not keep:
            return rows
        running = [running[at] for at in keep]
        logits = decoder.step(keep, [rows[place][-1] for place in running])


def test_rows_in_a_batch_are_what_they_are_alone_also_when_others_leave(decoder: BatchDecoder) -> None:
    limits = [3, 12, 7]
    alone = [greedy(decoder, [prompt], [limit])[0] for prompt, limit in zip(PROMPTS, limits, strict=True)]
    assert greedy(decoder, PROMPTS, limits) == alone


def test_a_new_batch_knows_nothing_of_the_last_one(decoder: BatchDecoder) -> None:
    first = decoder.begin(PROMPTS).copy()
    decoder.begin([[1, 2, 3, 4]])
    assert np.array_equal(decoder.begin(PROMPTS), first)
