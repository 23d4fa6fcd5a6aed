"""``vllm_model``: the wire contract of NVIDIA's vllm_backend (r26.01), as its client and its tests use it."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from waiting import eventually

from labkit.client import metrics

pytestmark = [pytest.mark.night, pytest.mark.xdist_group("vllm")]
MODEL = "vllm_model"
GREEDY = {"temperature": "0", "top_p": "1", "max_tokens": "8"}  # as strings: so upstream's client sends them


class Answers:
    """One gRPC stream to the server, and what comes on it, each with the error or None."""

    def __init__(self, server: Any) -> None:
        self.client = grpcclient.InferenceServerClient(server.grpc)
        self.came: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.client.start_stream(callback=lambda result, error: self.came.put((result, error)))

    def ask(self, text: str, parameters: Any = None, as_tensor: bool = True, **tensors: bool) -> None:
        given = GREEDY if parameters is None else parameters
        inputs = [_tensor("text_input", "BYTES", text.encode())]
        inputs += [_tensor(name, "BOOL", value) for name, value in tensors.items()]
        if as_tensor:
            raw = given if isinstance(given, str) else json.dumps(given)
            inputs.append(_tensor("sampling_parameters", "BYTES", raw.encode()))
        self.client.async_stream_infer(MODEL, inputs, request_id="1", parameters=None if as_tensor else given)

    def next(self) -> Any:
        result, error = self.came.get(timeout=60)
        assert error is None, error
        return result

    def refused(self) -> str:
        return str(self.came.get(timeout=60)[1])


def _tensor(name: str, kind: str, value: Any) -> Any:
    tensor = grpcclient.InferInput(name, [1], kind)
    tensor.set_data_from_numpy(np.array([value], dtype=object if kind == "BYTES" else bool))
    return tensor


def text(result: Any) -> str:
    (said,) = result.as_numpy("text_output")
    return str(said.decode())


@pytest.fixture
def server(lab_server: Any) -> Any:
    return lab_server("vllm-backend", model="shipped:tiny-llama", max_num_sequences=4)


@pytest.fixture
def answers(server: Any) -> Iterator[Answers]:
    opened = Answers(server)
    yield opened
    opened.client.stop_stream(cancel_requests=True)
    opened.client.close()


@pytest.mark.parametrize("as_tensor", [True, False])
def test_the_prompt_stands_before_the_answer_unless_it_is_excluded(answers: Answers, as_tensor: bool) -> None:
    answers.ask("Once upon a time", as_tensor=as_tensor)
    whole = text(answers.next())
    answers.ask("Once upon a time", as_tensor=as_tensor, exclude_input_in_output=True)
    assert whole == "Once upon a time" + text(answers.next())
    assert len(whole) > len("Once upon a time")


def test_a_stream_is_the_answer_in_pieces_and_its_end(answers: Answers) -> None:
    answers.ask("Once upon a time", exclude_input_in_output=True)
    whole = text(answers.next())
    answers.ask("Once upon a time", stream=True, exclude_input_in_output=True)
    assert "".join(text(answers.next()) for _ in range(8)) == whole


def test_an_output_comes_only_where_it_was_asked_for(answers: Answers) -> None:
    answers.ask("Once upon")
    assert [output.name for output in answers.next().get_response().outputs] == ["text_output"]
    wanted = ("finish_reason", "num_input_tokens", "num_output_tokens", "cumulative_logprob", "logprobs")
    answers.ask("Once upon a", {**GREEDY, "logprobs": 1}, **{f"return_{name}": True for name in wanted})
    result = answers.next()
    assert result.as_numpy("finish_reason")[0] == b"length"
    assert result.as_numpy("num_output_tokens") == 8 and result.as_numpy("num_input_tokens") >= 3
    told = json.loads(result.as_numpy("logprobs")[0])
    assert len(told) == 8
    likeliest = [max(each.values(), key=lambda entry: entry["logprob"]) for each in told]
    assert all(entry["rank"] == 1 for entry in likeliest), "greedy takes the likeliest"
    total = sum(entry["logprob"] for entry in likeliest)
    assert total == pytest.approx(result.as_numpy("cumulative_logprob")[0], abs=1e-3)


@pytest.mark.parametrize(
    ("prompt", "parameters", "more", "said"),
    [
        ("Once", {"max_tokenz": 5}, {}, "max_tokenz: unknown parameter"),
        ("Once", {"max_tokens": -5}, {}, "max_tokens must be at least 1"),
        ("Once", {"temperature": "hot"}, {}, "temperature: expected float, got 'hot'"),
        ("Once", "not JSON", {}, "sampling_parameters: it is not JSON"),
        ("Once", {"n": 2}, {}, "n: one answer for each request"),
        ("Once", {"n": [1]}, {}, "n: one answer for each request"),
        ("Once", {"lora_name": "x"}, {}, "lora_name: this model has no LoRA adapters"),
        ("", GREEDY, {}, "text_input: the text is empty"),
        ("Once " * 20_000, GREEDY, {}, "are more than a sequence may have"),
        ("Once", GREEDY, {"stream": True, "exclude_input_in_output": False}, "exclude_input_in_output: it must be"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 80 else None,
)
def test_what_is_wrong_is_named_and_the_next_request_is_served(
    answers: Answers, prompt: str, parameters: Any, more: dict[str, bool], said: str
) -> None:
    answers.ask(prompt, parameters, **more)
    assert said in answers.refused()
    answers.ask("Once")
    assert text(answers.next()).startswith("Once")


def test_a_client_that_leaves_frees_its_blocks(server: Any) -> None:
    leaving = Answers(server)
    leaving.ask("Once upon a time", {"max_tokens": 1500, "ignore_eos": True}, stream=True, exclude_input_in_output=True)
    leaving.next()

    def gauges() -> tuple[float, float]:
        own = metrics.scrape(server.metrics).own
        return own[MODEL, "labs_running"], own[MODEL, "labs_kv_blocks_used"]

    eventually(lambda: all(gauges()))  # else the zeros below may be those of the time before it came
    leaving.client.stop_stream(cancel_requests=True)
    leaving.client.close()
    eventually(lambda: gauges() == (0, 0))


def test_a_request_that_has_ended_is_recorded_and_no_step_has_failed(server: Any) -> None:
    answers = Answers(server)
    answers.ask("Once upon a time")
    answers.next()

    def recorded() -> list[Any]:
        lines = (server.run_dir / f"steps-{MODEL}-0_0.jsonl").read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["kind"] == "request" and line["made"] == 8]

    assert eventually(recorded)[0]["resumable"]
    assert "the step failed" not in (server.run_dir.parent / "server.log").read_text()


def test_model_json_holds_the_engines_arguments(server: Any) -> None:
    path = server.run_dir.parent / "repository" / MODEL / "1" / "model.json"
    arguments = json.loads(path.read_text())
    assert arguments["max_num_seqs"] == 4 and arguments["model"].endswith("models/tiny-llama")
