"""Which engine is behind `tensorrt_llm`, and with which settings, by the words of its config.pbtxt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from labsched.counting import CountingEngine
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.order import Order
from labsched.own import FILE, scheduler_beside
from labsched.policy import Policy
from labserve.inflight.engines import open_engine
from labserve.inflight.setup import order_in_force
from labserve.inflight.transformers_engine import BLOCK_SIZE
from labserve.model_shape import ModelShape

FOLDER = str(ROOT / "labs" / "shared" / "models" / "tiny-llama")


def open_it(engine: str, device: str = "cpu", **more: str) -> tuple[Any, KVBudget, Features]:
    words = {"engine": engine, "gpt_model_path": FOLDER, "threads": "1", "kv_cache_memory_mib": "1", **more}
    return open_engine(lambda name: words.get(name, ""), ModelShape.of(FOLDER), 2, device)


def test_the_configurations_words_reach_it() -> None:
    engine, kv, features = open_it(
        "transformers", exact="true", max_tokens_in_paged_kv_cache="100", max_num_tokens="40"
    )
    assert kv == KVBudget(3, BLOCK_SIZE)
    assert features == Features(chunked_context=True, max_num_tokens=40) and engine.step_tokens == 40
    assert engine.cache_bytes >= 5 * BLOCK_SIZE * 5 * 2 * 128 * 4  # two spare blocks; layers, keys and values, fp32


@pytest.mark.parametrize(
    ("engine", "device", "words", "said"),
    [
        ("vllm", "cpu", {}, "'vllm' is not one of openvino, transformers"),
        ("transformers", "cpu", {"enable_kv_cache_reuse": "true"}, "enable_kv_cache_reuse: .* cannot share blocks"),
        ("transformers", "cpu", {"kv_precision": "u8"}, "kv_precision: engine transformers cannot do 'u8'"),
        ("openvino", "cuda:0", {}, "on a GPU take transformers"),
    ],
)
def test_what_an_engine_is_not_or_cannot_do_is_refused_by_name(
    engine: str, device: str, words: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        open_it(engine, device, **words)


OWN = "from labsched import order, scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n"


@pytest.mark.parametrize(
    ("file", "there"),
    [
        (None, "fcfs"),
        (f"{OWN}    def reserve(self):\n        return 0\n", "fcfs"),
        (f"{OWN}    def line(self):\n        return list(self.waiting)\n", FILE),
        (
            f"{OWN}    def __init__(self, *all):\n        super().__init__(*all)\n        self.order = order.Order()\n",
            FILE,
        ),
    ],
    ids=["shipped", "another part", "line", "order"],
)
def test_the_order_of_a_file_of_ones_own_is_said_where_it_has_one(tmp_path: Path, file: str | None, there: str) -> None:
    if file:
        (tmp_path / FILE).write_text(file)
    asked = Order()
    engine = CountingEngine(16)
    scheduler = scheduler_beside(tmp_path)(engine, KVBudget(8, 32), Policy.MAX_UTILIZATION, 2, False, Features(), asked)
    assert order_in_force(scheduler, asked, "fcfs")[0] == there
