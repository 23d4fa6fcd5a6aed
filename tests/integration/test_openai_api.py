"""The OpenAI API in front of real stacks: with OpenAI's own client, with bare HTTP, and with clients that leave."""

from __future__ import annotations

import contextlib
import json
import math
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
from each_lab import LABS, PROMPT
from killing import kill_server
from lab_server import LabServer
from machinery import labctl
from own_stack import leftovers, shown
from pacing import slowed, standing
from waiting import DEADLINE_S, eventually

from labctl.clock import Clock
from labkit.client import metrics
from labsched.printable import printable

Door = Callable[[str], openai.OpenAI]
TOKENS = 12
STREAMED = "iterative"
# stack: the model that is asked; the other stacks' are those of LABS
MODELS = [
    *[
        pytest.param(row[0], row[1], row[2], marks=pytest.mark.xdist_group(row[-1]))
        for lab, row in LABS.items()
        if lab in ("iterative", "llama", "codegen", "batching", "schedulers")
    ],
    pytest.param("llama", "llama-python", LABS["llama"][2], marks=pytest.mark.xdist_group("llama")),
]
iterative = pytest.mark.xdist_group("iterative")


def sample(client: openai.OpenAI, name: str) -> float:
    """One of the door's own counters, over all its labels."""
    page = requests.get(str(client.base_url).replace("/v1/", "/metrics"), timeout=DEADLINE_S).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


@pytest.mark.parametrize(("stack", "model", "settings"), MODELS)
def test_the_text_is_that_of_labctl_infer(
    stack: str, model: str, settings: dict[str, Any], doors: Callable[..., openai.OpenAI], checkout: Path
) -> None:
    client = doors(stack, **settings)
    said = labctl("infer", stack, "-m", model, "-p", PROMPT, "-o", str(TOKENS), root=checkout).stdout
    answer = client.completions.create(model=model, prompt=PROMPT, max_tokens=TOKENS, extra_body={"ignore_eos": True})
    text = answer.choices[0].text
    assert printable(PROMPT + text) == said.removesuffix("\n").partition("<|endoftext|>")[0]
    assert answer.usage and answer.usage.prompt_tokens > 0
    parts = list(
        client.completions.create(
            model=model, prompt=PROMPT, max_tokens=TOKENS, stream=True, extra_body={"ignore_eos": True}
        )
    )
    assert "".join(part.choices[0].text for part in parts) == text
    assert [part.choices[0].finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    if stack == STREAMED:  # one response is one token there
        assert answer.usage.completion_tokens == TOKENS
        assert parts[-1].choices[0].finish_reason == answer.choices[0].finish_reason == "length"
        assert len(parts) > TOKENS // 2, "the text came token by token"


@iterative
def test_a_chat_with_usage_in_the_stream_is_the_same_chat_without(doors: Callable[..., openai.OpenAI]) -> None:
    client = doors(STREAMED)
    asked: dict[str, Any] = {
        "model": "iterative-gpt2",
        "messages": [{"role": "user", "content": "Where do you live?"}],
        "max_tokens": 16,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == whole.choices[0].message.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)


@iterative
def test_the_plain_template_is_what_the_model_is_given(doors: Callable[..., openai.OpenAI]) -> None:
    client = doors(STREAMED)
    chat = client.chat.completions.create(
        model="iterative-gpt2", messages=[{"role": "user", "content": "Where?"}], max_tokens=8
    )
    text = client.completions.create(model="iterative-gpt2", prompt="user: Where?\nassistant:", max_tokens=8)
    assert chat.choices[0].message.content == text.choices[0].text


@iterative
def test_an_answer_ends_before_its_stop_string(doors: Callable[..., openai.OpenAI]) -> None:
    client = doors(STREAMED)
    asked: dict[str, Any] = {"model": "iterative-gpt2", "prompt": PROMPT, "max_tokens": 24}
    text = client.completions.create(**asked).choices[0].text
    word = text[len(text) // 2 :][:4]
    stopped = client.completions.create(**asked, stop=[word])
    assert stopped.choices[0].text == text.partition(word)[0]
    assert stopped.choices[0].finish_reason == "stop"


@iterative
def test_choices_and_prompts_are_counted_through_and_a_seed_repeats_them(doors: Callable[..., openai.OpenAI]) -> None:
    client = doors(STREAMED)
    asked: dict[str, Any] = {
        "model": "iterative-gpt2",
        "prompt": [PROMPT, "Once upon a time"],
        "n": 2,
        "temperature": 1,
        "seed": 3,
        "max_tokens": 8,
    }
    first, again = (client.completions.create(**asked) for _ in range(2))
    assert [choice.index for choice in first.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in first.choices] == [choice.text for choice in again.choices]
    assert first.choices[0].text != first.choices[1].text
    streamed = ["", "", "", ""]
    for chunk in client.completions.create(**asked, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in first.choices]


@pytest.mark.parametrize(
    ("stack", "model", "settings"),
    [
        pytest.param(STREAMED, "iterative-gpt2", {}, marks=iterative),
        pytest.param(STREAMED, "simple-gpt2", {}, marks=iterative),
        pytest.param(
            "inflight-batching",
            "ensemble",
            {"model": "shipped:tiny-llama", "exact": True, "decoupled_mode": True},
            marks=pytest.mark.xdist_group("llm"),
        ),
        pytest.param(
            "two-servers", "apart-gpt2", {"step_ms": 0, "token_ms": 0}, marks=pytest.mark.xdist_group("two-servers")
        ),
    ],
)
def test_log_probabilities_are_those_of_the_tokens_streamed_or_not(
    doors: Callable[..., openai.OpenAI], stack: str, model: str, settings: dict[str, Any]
) -> None:
    client = doors(stack, **settings)
    asked: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": TOKENS, "logprobs": 2}
    choice = client.completions.create(**asked).choices[0]
    found = choice.logprobs
    assert found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
    assert "".join(found.tokens) == choice.text
    for start, token in zip(found.text_offset, found.tokens, strict=True):
        assert choice.text[start:].startswith(token)
    for token, logprob, rivals in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert next(iter(rivals)) == token, "greedy: the likeliest token"
        assert rivals[token] == logprob == max(rivals.values())
        assert sum(map(math.exp, rivals.values())) <= 1
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)]
    streamed = [chunk for chunk in chunks if chunk]
    assert len(streamed) == TOKENS
    assert [token for chunk in streamed for token in chunk.tokens or []] == found.tokens
    assert [start for chunk in streamed for start in chunk.text_offset or []] == found.text_offset


@iterative
def test_a_chat_has_log_probabilities_up_to_its_stop_string(doors: Callable[..., openai.OpenAI]) -> None:
    client = doors(STREAMED)
    asked: dict[str, Any] = {
        "model": "iterative-gpt2",
        "messages": [{"role": "user", "content": "Where?"}],
        "max_tokens": 16,
        "logprobs": True,
    }
    whole = client.chat.completions.create(**asked).choices[0]
    text = whole.message.content
    assert text and whole.logprobs and whole.logprobs.content
    assert len(whole.logprobs.content) > 2
    stop = text[len(text) // 2 :][:4]
    stopped = client.chat.completions.create(**asked, stop=[stop]).choices[0]
    assert stopped.logprobs and stopped.logprobs.content
    assert 0 < len(stopped.logprobs.content) < len(whole.logprobs.content)
    assert all(one.top_logprobs == [] for one in stopped.logprobs.content)


@iterative
def test_errors_are_those_of_openais_client(doors: Callable[..., openai.OpenAI]) -> None:
    client = doors(STREAMED)
    with pytest.raises(openai.NotFoundError, match="there is: simple-gpt2, iterative-gpt2"):
        client.completions.create(model="gpt-5", prompt="x")
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="iterative-gpt2", prompt="x", max_tokens=100_000)
    assert too_long.value.param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as unable:
        client.completions.create(model="iterative-gpt2", prompt="x", logit_bias={"0": 1})
    assert unable.value.param == "logit_bias"
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.embeddings.create(model="iterative-gpt2", input="x")
    assert [model.id for model in client.models.list()] == ["simple-gpt2", "iterative-gpt2"]


@iterative
def test_bare_http_gets_events_and_its_own_request_id(doors: Callable[..., openai.OpenAI]) -> None:
    url = f"{doors(STREAMED).base_url}completions"
    body = {"model": "iterative-gpt2", "prompt": PROMPT, "max_tokens": 3, "stream": True}
    answer = requests.post(url, json=body, headers={"x-request-id": "mine-1"}, timeout=DEADLINE_S)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"] == "mine-1"
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert {json.loads(event.removeprefix("data: "))["id"] for event in events} == {"cmpl-mine-1"}


@iterative
def test_a_deadline_ends_an_answer(doors: Callable[..., openai.OpenAI], lab_server: Callable[..., LabServer]) -> None:
    client, server = doors(STREAMED), lab_server(STREAMED)
    with standing(server.run_dir, "iterative-gpt2"), pytest.raises(openai.InternalServerError) as late:
        client.completions.create(
            model="iterative-gpt2",
            prompt=PROMPT,
            max_tokens=900,
            extra_headers={"x-timeout-ms": "20"},
            extra_body={"ignore_eos": True},
        )
    assert late.value.status_code == 504
    eventually(lambda: sample(client, "labs_door_running") == 0)


@iterative
def test_clients_that_leave_give_their_slots_back(
    doors: Callable[..., openai.OpenAI], lab_server: Callable[..., LabServer]
) -> None:
    client, server = doors(STREAMED), lab_server(STREAMED)
    where = client.base_url
    body = json.dumps(
        {"model": "iterative-gpt2", "prompt": PROMPT, "max_tokens": 900, "ignore_eos": True, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    left = 'labs_door_requests_total{code="499"'
    before = sample(client, left)
    opened = []
    with slowed(server.run_dir, "iterative-gpt2"):  # none has its whole answer before its client leaves
        for _ in range(10):  # two more than there are slots
            opened.append(socket.create_connection((str(where.host), int(where.port or 0)), timeout=DEADLINE_S))
            opened[-1].sendall(head + body)
        eventually(lambda: sample(client, "labs_door_running") == 10)  # one that left before was never a request
        for connection in opened:
            connection.close()
        eventually(lambda: sample(client, left) == before + 10)
    eventually(
        lambda: all(
            value == 0
            for (_, name), value in metrics.scrape(server.metrics).own.items()
            if name in ("labs_running", "labs_waiting")
        )
    )
    assert client.completions.create(model="iterative-gpt2", prompt=PROMPT, max_tokens=3).usage


@pytest.mark.xdist_group("llm")
def test_a_client_that_leaves_ends_its_request_inside_an_ensemble(
    doors: Callable[..., openai.OpenAI], lab_server: Callable[..., LabServer], checkout: Path
) -> None:
    """Triton tells no model inside an ensemble that a client has gone; its tenant and its id arrive there."""
    stack, _, settings, _ = LABS["batching"]
    client, server = doors(stack, **settings), lab_server(stack, **settings)
    steps = Clock(server.run_dir, ("tensorrt_llm",))

    def named(ids: Iterable[str]) -> bool:
        return any(id.endswith(":770001") for id in ids)

    labctl("clock", stack, "pause", root=checkout)
    try:
        with socket.create_connection((str(client.base_url.host), int(client.base_url.port or 0))) as connection:
            body = json.dumps({"model": "ensemble", "prompt": PROMPT, "max_tokens": 400, "ignore_eos": True}).encode()
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nx-request-id: 770001\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body
            )
            eventually(lambda: [s for s in steps.states("tensorrt_llm") if named(s.get("ids", []))])
        eventually(lambda: sample(client, "labs_door_running") == 0)
    finally:
        labctl("clock", stack, "run", root=checkout)

    def lines() -> list[Any]:
        texts = [path.read_text() for path in server.run_dir.glob("steps-tensorrt_llm-*.jsonl")]
        whole = [line for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in whole]

    eventually(lambda: any(named(line.get("ended", {})) for line in lines()))
    assert sum(named(line.get("ids", [])) for line in lines()) < 400


def test_up_with_openai_serves_it_and_down_leaves_nothing(own: Path) -> None:
    done = labctl("up", "iterative", "--openai", "--runtime", "local", "--ports", "auto", "--json", root=own)
    address = json.loads(done.stdout)["openai"]
    with openai.OpenAI(base_url=address, api_key="none") as client:
        assert client.completions.create(model="simple-gpt2", prompt=PROMPT, max_tokens=2).choices[0].text
    labctl("down", "iterative", root=own)
    assert leftovers(own) == []
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=10)


def test_a_door_before_replicas_serves_on_when_one_is_killed(own: Path) -> None:
    words = ("--openai", "--replicas", "2", "--ports", "auto", "--runtime", "local", "--json")
    address = json.loads(labctl("up", "iterative", *words, root=own).stdout)["openai"]
    asked: dict[str, Any] = {"model": "simple-gpt2", "prompt": PROMPT, "max_tokens": 2}
    with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
        text = client.completions.create(**asked).choices[0].text
        eventually(lambda: [client.completions.create(**asked), replicas_that_answered(own) == {1, 2}][1])
        kill_server(own, "iterative", "local", 1)
        eventually(lambda: shown(own)["state"] == "degraded")

        def answers() -> bool:
            with contextlib.suppress(openai.InternalServerError):  # what was on its way to the dead one
                return client.completions.create(**asked).choices[0].text == text
            return False

        eventually(lambda: all(answers() for _ in range(8)))
        assert shown(own)["openai"] == address


def replicas_that_answered(root: Path) -> set[int]:
    servers = shown(root)["replicas"]
    counts = {one["number"]: metrics.scrape(one["endpoints"]["metrics"]).models for one in servers}
    return {number for number, models in counts.items() if models["simple-gpt2"].exec_count > 0}
