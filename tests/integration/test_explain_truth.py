"""What explain says of situations whose truth is known by really running every setting (`make bench ARGS=explain`)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from layer import process_with_vllm

from benchmarks import explain

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def vllm(cache: Path) -> Iterator[ProcessPoolExecutor]:
    with process_with_vllm(cache) as pool:
        yield pool


@pytest.mark.parametrize("name", ["stop-strings", "long-among-chat", "front-end"])
def test_the_first_sentence_is_about_the_true_cause_and_no_advice_makes_it_worse(
    name: str, vllm: ProcessPoolExecutor
) -> None:
    found = vllm.submit(explain.judge, name, False).result()
    assert found["cause"], found["sentences"]
    assert all(advice["right"] and not advice["worse"] for advice in found["advice"].values()), found["advice"]
