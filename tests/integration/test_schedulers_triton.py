"""Everything that a scheduler can do, at once, on a real Triton: right answers, and evidence of each."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient
from machinery import eventually, labctl
from transformers import AutoModelForCausalLM

from labctl import server_api
from labctl.measure.clients import tensors
from labctl.measure.evidence import steplog

pytestmark = pytest.mark.xdist_group("llm")
SETTINGS: dict[str, Any] = {
    "model": "random:tiny-llama", "exact": True, "engine_precision": "fp32", "max_num_sequences": 4,
    "max_num_tokens": 48, "enable_kv_cache_reuse": True, "scheduling": "fair", "speculation": "prompt_lookup",
    "num_assistant_tokens": 3, "batch_scheduler_policy": "max_utilization", "max_tokens_in_paged_kv_cache": 512,
}  # fmt: skip
BEGINNING = [7 + n for n in range(100)]
PROMPTS = [[*BEGINNING, *([200 + n, 201, 202] * (1 + n % 4))] for n in range(20)]
LIMITS = [30 + n for n in range(20)]


def ask(ids: list[int], tokens: int) -> list[Any]:
    return [
        tensors.tensor("input_ids", ids, np.int32),
        tensors.tensor("input_lengths", len(ids), np.int32),
        tensors.tensor("request_output_len", tokens, np.uint32),
    ]


def answers(server: Any) -> list[list[int]]:
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.infer("tensorrt_llm", ask(BEGINNING, 1))  # so that its keys and values are there
        for number, ids in enumerate(PROMPTS):
            client.async_infer(
                "tensorrt_llm", ask(ids, LIMITS[number]), request_id=str(number + 1),
                parameters={"tenant": "light" if number == 19 else "flood", "request_priority": 1},
                callback=lambda result, error, number=number: done.put((number, result, error)),
            )  # fmt: skip
        found: dict[int, list[int]] = {}
        for _ in PROMPTS:
            number, result, error = done.get(timeout=120)
            assert error is None, error
            found[number] = result.as_numpy("output_ids")[0, 0].tolist()
    return [found[number] for number in range(len(PROMPTS))]


def test_with_everything_on_the_answers_are_hugging_faces_and_each_setting_is_seen_at_work(
    lab_server: Any, checkout: Any
) -> None:
    server = lab_server("inflight-batching", **SETTINGS)
    found = answers(server)
    model = AutoModelForCausalLM.from_pretrained(server.settings["tokenizer_dir"], dtype=torch.float32)
    model.generation_config.eos_token_id = None
    for prompt, limit, answer in zip(PROMPTS, LIMITS, found, strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, max_new_tokens=limit, do_sample=False, pad_token_id=0)
        assert answer == expected[0].tolist()

    steps = steplog.read(server.run_dir, "tensorrt_llm")
    assert max(step.more["prefill_tokens"] + step.more["decode_tokens"] for step in steps) <= 48
    assert sum(sum(step.more["cached"]) for step in steps) >= 20 * 96
    guessed, accepted = (sum(sum(step.more[name]) for step in steps) for name in ("guessed", "accepted"))
    assert 0 < accepted <= guessed
    assert any(step.more.get("tenants", {}).get("flood") for step in steps)
    order = [id for step in steps for id in step.more.get("joined", [])]
    assert order.index("20") < 8, "under fair the light tenant's request, sent last, does not wait for all others"

    eventually(lambda: "labs_cached_tokens_total" in page(server))
    text = page(server)
    for name in ("labs_cached_tokens_total", 'outcome="accepted"', 'outcome="rejected"', 'tenant="flood"'):
        assert name in text
    shown = labctl("status", "inflight-batching", root=checkout).stdout
    assert "speculation=prompt_lookup" in shown and "scheduling=fair" in shown


def test_a_priority_that_is_none_is_refused_by_name_and_what_no_engine_can_do_too(lab_server: Any) -> None:
    server = lab_server("inflight-batching", **SETTINGS)
    with grpcclient.InferenceServerClient(server.grpc) as client, pytest.raises(Exception, match="request_priority"):
        client.infer("tensorrt_llm", ask([5], 2), parameters={"request_priority": 0})


def page(server: Any) -> str:
    return server_api.call(server.metrics, "GET", "/metrics")[1].decode()
