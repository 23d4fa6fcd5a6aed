"""`--set engine=transformers` on a real Triton: the contract of `tensorrt_llm`, and Hugging Face's own answers."""

from __future__ import annotations

import queue
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient
from transformers import AutoModelForCausalLM
from tritonclient.utils import InferenceServerException

from labkit.clients import tensors

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("llm")]
SETTINGS = {"model": "random:tiny-llama", "exact": True}
PROMPTS = [[5 + n, 6, 7] * (1 + n % 5) for n in range(24)]


def ask(ids: list[int], tokens: int, **more: Any) -> list[Any]:
    return [
        tensors.tensor("input_ids", ids, np.int32),
        tensors.tensor("input_lengths", len(ids), np.int32),
        tensors.tensor("request_output_len", tokens, np.uint32),
        *(tensors.tensor(name, value, np.float32) for name, value in more.items()),
    ]


def answers(server: Any) -> list[list[int]]:
    """What ``tensorrt_llm`` answers to all prompts at once, each with its own length."""
    done: queue.Queue[tuple[int, Any, Any]] = queue.Queue()
    with grpcclient.InferenceServerClient(server.grpc) as client:
        for number, ids in enumerate(PROMPTS):
            client.async_infer(
                "tensorrt_llm",
                ask(ids, 4 + number),
                callback=lambda result, error, number=number: done.put((number, result, error)),
            )
        found: dict[int, list[int]] = {}
        for _ in PROMPTS:
            number, result, error = done.get(timeout=60)
            assert error is None, error
            found[number] = result.as_numpy("output_ids")[0, 0].tolist()
    return [found[number] for number in range(len(PROMPTS))]


def alone(folder: str) -> list[list[int]]:
    """What Hugging Face's generate answers to each prompt by itself."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return [
        model.generate(torch.tensor([ids]), max_new_tokens=4 + n, do_sample=False, pad_token_id=0)[0].tolist()
        for n, ids in enumerate(PROMPTS)
    ]


def test_all_at_once_are_answered_as_each_would_be_alone_and_what_it_cannot_do_is_refused(lab_server: Any) -> None:
    server = lab_server("inflight-batching", engine="transformers", **SETTINGS)
    assert answers(server) == alone(server.settings["tokenizer_dir"])
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match="temperature"),
    ):
        client.infer("tensorrt_llm", ask([1, 2], 3, temperature=0.7))
