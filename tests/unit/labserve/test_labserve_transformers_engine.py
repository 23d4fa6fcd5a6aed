"""transformers' continuous batching as the engine behind `tensorrt_llm`, on the CPU with a model made on the spot."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from labsched.features import Features
from labsched.kv_budget import KVBudget
from labsched.order import ORDERS, order
from labsched.policy import Policy
from labsched.request import Request
from labsched.sampling_options import Sampling
from labsched.scheduler import Scheduler
from labserve.inflight.engines import open_engine
from labserve.inflight.transformers_engine import BLOCK_SIZE, TransformersEngine
from labserve.model_shape import ModelShape
from labserve.params import BadInput

SLOTS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=199,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
    )
    path = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> TransformersEngine:
    return TransformersEngine(str(folder), KVBudget(16, BLOCK_SIZE), SLOTS, exact=True, threads=1, features=Features())


@functools.cache
def reference(folder: Path) -> Any:
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model


def greedy(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    """What Hugging Face's own generate answers, one prompt alone."""
    ids = torch.tensor([prompt])
    out = reference(folder).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
    )
    answer: list[int] = out[0, len(prompt) :].tolist()
    return answer


def run(engine: TransformersEngine, jobs: list[Request], kv: int = 16, static: bool = False) -> None:
    scheduler = Scheduler(engine, KVBudget(kv, BLOCK_SIZE), Policy.MAX_UTILIZATION, SLOTS, static)
    for job in jobs:
        scheduler.submit(job)
    while not scheduler.idle:
        scheduler.step()


def jobs(count: int) -> list[Request]:
    return [Request(str(n), [7 + n] * (3 + 9 * n), 4 + 2 * n, Sampling()) for n in range(count)]


@pytest.mark.parametrize("static", [False, True])
def test_answers_in_a_shared_batch_are_those_of_generate_alone(
    folder: Path, engine: TransformersEngine, static: bool
) -> None:
    asked = jobs(6)  # more than there are places
    run(engine, asked, static=static)
    assert [job.output for job in asked] == [greedy(folder, job.prompt, job.limit) for job in asked]


@pytest.mark.parametrize("word", list(ORDERS))
def test_a_small_budget_and_any_order_leave_the_answers_as_they_are(folder: Path, word: str) -> None:
    kv, features = KVBudget(12, BLOCK_SIZE), Features(max_num_tokens=9)
    engine = TransformersEngine(str(folder), kv, SLOTS, exact=True, threads=1, features=features)
    scheduler = Scheduler(engine, kv, Policy.MAX_UTILIZATION, SLOTS, False, features, order(word))
    asked = jobs(6)
    for number, job in enumerate(asked):
        job.tenant, job.priority = "ab"[number % 2], 1 + number % 3
        scheduler.submit(job)
    while not scheduler.idle:
        assert sum(scheduler.step().computed) <= 9
    assert [job.output for job in asked] == [greedy(folder, job.prompt, job.limit) for job in asked]


def test_an_evicted_sequence_goes_on_where_it_was(folder: Path, engine: TransformersEngine) -> None:
    asked = [Request(str(n), [11 + n] * 30, 40, Sampling()) for n in range(3)]
    run(engine, asked, kv=5)  # all three fit at first, and not to their ends
    assert [job.output for job in asked] == [greedy(folder, job.prompt, job.limit) for job in asked]


def test_an_end_id_ends_a_sequence_with_it(folder: Path, engine: TransformersEngine) -> None:
    whole = greedy(folder, [5, 6, 7], 9)
    job = Request("a", [5, 6, 7], 9, Sampling(end_id=whole[4]))
    run(engine, [job])
    assert job.output == whole[: whole.index(whole[4]) + 1]


def test_a_dropped_sequence_leaves_nothing_behind(engine: TransformersEngine) -> None:
    handle = engine.add([1, 2, 3], 50, Sampling())
    engine.step()
    engine.drop(handle)
    engine.step()
    assert not engine._processor.scheduler.has_pending_requests()
    assert engine._processor.cache.get_num_free_blocks() == engine._processor.cache.num_blocks


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        (Sampling(sample=True), "temperature"),
        (Sampling(repetition_penalty=1.2), "repetition_penalty"),
        (Sampling(presence_penalty=0.5), "presence_penalty"),
        (Sampling(min_length=3, end_id=1), "min_length"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(engine: TransformersEngine, sampling: Sampling, name: str) -> None:
    with pytest.raises(BadInput, match=name):
        engine.add([1], 1, sampling)


def open_it(folder: Path, engine: str, device: str = "cpu", **more: str) -> tuple[Any, KVBudget, Features]:
    words = {"engine": engine, "gpt_model_path": str(folder), "threads": "1", "kv_cache_memory_mib": "1", **more}
    return open_engine(lambda name: words.get(name, ""), ModelShape.of(str(folder)), 2, device)


def test_the_configurations_words_reach_it(folder: Path) -> None:
    engine, kv, features = open_it(
        folder, "transformers", exact="true", max_tokens_in_paged_kv_cache="100", max_num_tokens="40"
    )
    assert kv == KVBudget(3, BLOCK_SIZE)
    assert features == Features(chunked_context=True, max_num_tokens=40) and engine.step_tokens == 40
    assert engine.cache_bytes >= 5 * BLOCK_SIZE * 2 * 2 * 32 * 4  # two spare blocks; layers, keys and values, fp32


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
    folder: Path, engine: str, device: str, words: dict[str, str], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        open_it(folder, engine, device, **words)
