"""Log probabilities of a real Triton's answers are those that PyTorch computes in one pass over the same tokens."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import tritonclient.grpc as grpcclient
from lab_server import LabServer
from pacing import await_held, standing
from transformers import AutoModelForCausalLM, AutoTokenizer
from tritonclient.utils import InferenceServerException
from waiting import eventually

from labkit.client import metrics
from labkit.client.ask import tensor, text_tensor

pytestmark = pytest.mark.night

EXACT = {"model": "random:tiny-llama", "exact": True, "engine_precision": "fp32"}
SMALL = {"batch_scheduler_policy": "max_utilization", "max_tokens_in_paged_kv_cache": 96}  # three blocks
LLM = pytest.mark.xdist_group("llm")
ASKED = [  # prompt, tokens, rivals, temperature; None: no log probabilities, or greedy
    ("The cat sat on the mat because it", 30, 3, None),
    ("Once upon a time there was", 44, 0, None),
    ("I have lived in", 6, None, None),
    ("The train to", 36, 5, 1.5),
]
Row = dict[str, dict[str, Any]]


def send(client: Any, model: str, place: int, inputs: Sequence[Any], rivals: int | None) -> None:
    more = {} if rivals is None else {"logprobs": rivals}
    client.async_stream_infer(
        model, inputs, request_id=str(place + 1), parameters=more, enable_empty_final_response=True
    )


def streamed(server: LabServer, model: str, made: Callable[..., Sequence[Any]]) -> list[list[Row]]:
    """All requests at once: for each the log probabilities of its tokens, [] where no response had any."""
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found: list[list[Row]] = [[] for _ in ASKED]
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        with standing(server.run_dir, "tensorrt_llm") as clock:
            for place, (prompt, tokens, rivals, temperature) in enumerate(ASKED):
                send(client, model, place, made(prompt, tokens, temperature), rivals)
            await_held(clock, "tensorrt_llm", len(ASKED))
        left = len(ASKED)
        while left:
            result, error = done.get(timeout=120)
            assert error is None, error
            response = result.get_response()
            if (said := result.as_numpy("logprobs")) is not None:
                found[int(response.id) - 1] += json.loads(said.reshape(-1)[0])
            left -= response.parameters["triton_final_response"].bool_param
    return found


def of_pytorch(folder: str, prompt: str, ids: Sequence[int]) -> torch.Tensor:
    """Log probabilities of every token at the places of ``ids`` behind the prompt, [ids, vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = AutoTokenizer.from_pretrained(folder).encode(prompt)
    with torch.inference_mode():
        logits = model(torch.tensor([[*before, *ids]])).logits[0]
    return torch.log_softmax(logits[len(before) - 1 : -1].double(), dim=-1)


def judge(folder: str, found: Sequence[Sequence[Row]]) -> None:
    for (prompt, tokens, rivals, temperature), rows in zip(ASKED, found, strict=True):
        assert len(rows) == (0 if rivals is None else tokens), prompt
        ids = [int(next(iter(row))) for row in rows]
        if not rows:
            continue
        expected = of_pytorch(folder, prompt, ids)
        for row, scores in zip(rows, expected, strict=True):
            assert [one["logprob"] for one in row.values()] == pytest.approx(
                [float(scores[int(id)]) for id in row], abs=1e-3
            )
            assert sum(one["rank"] <= (rivals or 0) for one in row.values()) == rivals
            if temperature is None:
                assert next(iter(row.values()))["rank"] == 1, "greedy: the likeliest token"
                assert int(next(iter(row))) == int(scores.argmax())


def ensemble(prompt: str, tokens: int, temperature: float | None) -> list[Any]:
    made = [
        text_tensor("text_input", prompt),
        tensor("max_tokens", tokens, np.uint32),
        text_tensor("bad_words", ""),
        text_tensor("stop_words", ""),
        tensor("stream", True, np.bool_),
    ]
    return made + ([tensor("temperature", temperature, np.float32)] if temperature else [])


def alone(prompt: str) -> list[Any]:
    return [text_tensor("text_input", prompt)]


@LLM
@pytest.mark.parametrize("more", [{}, {"speculation": "prompt_lookup"}, SMALL])
def test_an_ensemble_gives_those_of_one_pass_whoever_shares_its_batch(
    lab_server: Callable[..., LabServer], more: dict[str, Any]
) -> None:
    server = lab_server("inflight-batching", decoupled_mode=True, **EXACT, **more)
    judge(server.settings["tokenizer_dir"], streamed(server, "ensemble", ensemble))

    def preempted() -> bool:
        return metrics.scrape(server.metrics).own["tensorrt_llm", "labs_preemptions_total"] > 0

    eventually(lambda: preempted() == (more == SMALL))


@LLM
def test_a_whole_answer_has_those_of_all_its_tokens_and_one_that_did_not_ask_has_no_such_output(
    lab_server: Callable[..., LabServer],
) -> None:
    server = lab_server("inflight-batching", **EXACT)
    prompt, tokens, rivals, _ = ASKED[0]
    with grpcclient.InferenceServerClient(server.grpc) as client:
        inputs = ensemble(prompt, tokens, None)[:4]
        asked, plain = (client.infer("ensemble", inputs, parameters=more) for more in ({"logprobs": rivals}, {}))
        with pytest.raises(InferenceServerException, match="logprobs: 21 is out of range"):
            client.infer("ensemble", inputs, parameters={"logprobs": 21})
    assert [one.name for one in plain.get_response().outputs] == ["text_output"]
    assert plain.as_numpy("text_output") == asked.as_numpy("text_output")
    found = json.loads(asked.as_numpy("logprobs").reshape(-1)[0])
    assert len(found) == tokens
    expected = of_pytorch(server.settings["tokenizer_dir"], prompt, [int(next(iter(row))) for row in found])
    for row, scores in zip(found, expected, strict=True):
        assert next(iter(row.values()))["logprob"] == pytest.approx(float(scores.max()), abs=1e-3)


@LLM
def test_an_engine_that_has_none_refuses_by_name(lab_server: Callable[..., LabServer]) -> None:
    server = lab_server("inflight-batching", engine="transformers", model="random:tiny-llama", exact=True)
    with (
        grpcclient.InferenceServerClient(server.grpc) as client,
        pytest.raises(InferenceServerException, match="logprobs: engine=transformers gives no log probabilities"),
    ):
        client.infer("ensemble", ensemble("x", 2, None)[:4], parameters={"logprobs": 0})


@pytest.mark.xdist_group("vllm")
def test_vllm_behind_the_ensemble_gives_its_own(lab_server: Callable[..., LabServer]) -> None:
    server = lab_server("inflight-batching", engine="vllm", decoupled_mode=True, model="shipped:tiny-llama", exact=True)
    judge(server.settings["tokenizer_dir"], streamed(server, "ensemble", ensemble))


@pytest.mark.xdist_group("two-servers")
def test_a_server_that_hands_requests_over_gives_those_of_its_own_and_refuses_them_for_a_handed_over_one(
    lab_server: Callable[..., LabServer],
) -> None:
    server = lab_server("two-servers", step_ms=0, token_ms=0)
    done: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found: list[list[Row]] = [[] for _ in ASKED]
    with grpcclient.InferenceServerClient(server.grpc) as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for place, (prompt, tokens, rivals, temperature) in enumerate(ASKED):
            more: dict[str, Any] = {"max_tokens": tokens, "ignore_eos": True}
            more |= {} if rivals is None else {"logprobs": rivals}
            more |= {} if temperature is None else {"temperature": str(temperature)}
            client.async_stream_infer("apart-gpt2", alone(prompt), request_id=str(place + 1), parameters=more)
        count = sum(tokens for _, tokens, *_ in ASKED)
        for _ in range(count):
            result, error = done.get(timeout=120)
            assert error is None, error
            if (said := result.as_numpy("logprobs")) is not None:
                found[int(result.get_response().id) - 1] += json.loads(said.reshape(-1)[0])
        judge(server.settings["tokenizer_dir"], found)
        inputs = [*alone("a b"), tensor("hand_over", True, np.bool_)]
        client.async_stream_infer("apart-gpt2", inputs, parameters={"logprobs": 1})
        _, error = done.get(timeout=120)
        assert "logprobs: a request that is handed over has none of its first token" in str(error)
