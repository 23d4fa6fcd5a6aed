"""The rules that hold of our scheduler at every step, whatever comes, held against vLLM's: the same machine drives it.

vLLM computes nothing here: its scheduler, its block pool and its prefix cache are the real ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from layer import process_with_vllm
from scheduling_machine import Vllms, keeps_the_rules

from labserve.vllm.settings import ORDERS

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]


@pytest.fixture(scope="module")
def process(cache: Path) -> Iterator[ProcessPoolExecutor]:
    with process_with_vllm(cache) as pool:
        yield pool


@pytest.mark.parametrize("static", [False, True], ids=["in flight", "static"])
@pytest.mark.parametrize("word", ORDERS)
def test_every_step_of_vllm_keeps_the_rules_whatever_comes(
    word: str, static: bool, process: ProcessPoolExecutor
) -> None:
    process.submit(keeps_the_rules, Vllms, 25, static=static, word=word).result()
