"""Which engine is behind `tensorrt_llm`, and with which settings, by the words of its config.pbtxt."""

from __future__ import annotations

from typing import Any

import pytest
from checkout import ROOT

from labsched.features import Features
from labsched.kv_budget import KVBudget
from labserve.inflight.engines import open_engine
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
