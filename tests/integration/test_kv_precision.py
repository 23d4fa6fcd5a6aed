"""`kv_precision=u8` by what the engine has allocated, and what is said where an engine does not do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from machinery import labctl

from labctl.artifacts import engines
from labctl.workspace import Workspace
from labsched.features import Features
from labsched.kv_budget import KVBudget
from labserve.inflight.engines import open_engine
from labserve.inflight.openvino_engine import BLOCK_SIZE, OpenVinoEngine
from labserve.model_shape import ModelShape

pytestmark = pytest.mark.night

BATCH, MIB = 2, 1
MODELS = pytest.mark.parametrize("spec", ["random:tiny-llama", "shipped:tiny-llama"])  # heads of 16 and of 32 numbers


def opened(cache: Path, spec: str, **words: str) -> tuple[Any, KVBudget, Features]:
    folder = str(engines.request("openvino", spec, {"precision": "fp32"}).make(Workspace(ROOT, cache), print))
    said = {"gpt_model_path": folder, "threads": "1", "kv_cache_memory_mib": str(MIB), "exact": "true", **words}
    return open_engine(lambda name: said.get(name, ""), ModelShape.of(folder), BATCH, "cpu")


def bytes_of_a_token(engine: Any, kv: KVBudget) -> float:
    return float(engine.cache_bytes / (kv.blocks + BATCH) / BLOCK_SIZE)


@MODELS
def test_the_engine_itself_allocates_a_byte_a_number_and_its_scales(cache: Path, spec: str) -> None:
    full, full_kv, _ = opened(cache, spec)
    small, small_kv, features = opened(cache, spec, kv_precision="u8")
    numbers = bytes_of_a_token(full, full_kv) / 4  # of fp32
    head = 16 if spec == "random:tiny-llama" else 32
    scales = 8 + 8 * head / BLOCK_SIZE  # of a head's values, and of its keys
    assert bytes_of_a_token(small, small_kv) == numbers + numbers / head / 2 * scales
    assert features.kv_precision == "u8"
    assert small_kv.blocks > 2 * full_kv.blocks, "more blocks fit in the same memory"
    assert small.cache_bytes <= MIB * 2**20 + BATCH * BLOCK_SIZE * bytes_of_a_token(small, small_kv)


def test_an_engine_whose_cache_is_larger_than_that_is_said_to_have_its_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OpenVinoEngine, "cache_bytes", 2**30)
    _, _, features = opened(cache, "random:tiny-llama", kv_precision="u8")
    found = {
        name: (asked, there, why)
        for name, asked, there, why in features.in_force(lambda name: "u8" if name == "kv_precision" else "")
    }
    assert found["kv_precision"] == ("u8", "auto", "the engine's KV cache takes more bytes than these would")


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_labctl_refuses_it_by_name_for_another_engine(own: Path, engine: str) -> None:
    asked = ("render", "inflight-batching", "--set", f"engine={engine}", "--set", "kv_precision=u8")
    done = labctl(*asked, root=own, check=False)
    assert done.returncode != 0 and "kv_precision" in done.stderr, done.stderr
