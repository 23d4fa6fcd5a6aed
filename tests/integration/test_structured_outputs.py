"""Answers of vLLM by a JSON schema, and its log probabilities, through the OpenAI API in front of real servers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import openai
import pytest
from waiting import eventually

from labkit.evidence import steplog

pytestmark = pytest.mark.night

PROMPT = "Once upon a time"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
VLLM: dict[str, Any] = {
    "engine": "vllm",
    "model": "shipped:tiny-llama",
    "decoupled_mode": True,
    "exact": True,
    "max_num_sequences": 3,
    "max_tokens_in_paged_kv_cache": 320,
}
BACKEND: dict[str, Any] = {"model": "shipped:tiny-llama", "max_num_sequences": 4}
vllm = pytest.mark.xdist_group("vllm")
#: stack, settings, the model that is asked, the model that writes steps
MASKING = [
    pytest.param("inflight-batching", VLLM, "ensemble", "tensorrt_llm", marks=vllm),
    pytest.param("vllm-backend", BACKEND, "vllm_model", "vllm_model", marks=vllm),
]
Doors = Callable[..., openai.OpenAI]


def ask(client: openai.OpenAI, model: str, **more: Any) -> Any:
    form = more.pop("response_format", FORM)
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 150, **more}
    return client.completions.create(**asked, extra_body={"response_format": form})


@pytest.mark.parametrize(("stack", "settings", "model", "engine"), MASKING)
def test_answers_that_end_by_themselves_follow_their_schema(
    stack: str, settings: dict[str, Any], model: str, engine: str, doors: Doors, lab_server: Any
) -> None:
    client = doors(stack, **settings)
    choices = [choice for seed in (1, 2) for choice in ask(client, model, n=3, seed=seed, temperature=1.0).choices]
    ended = [choice.text for choice in choices if choice.finish_reason == "stop"]
    assert len(ended) > len(choices) / 2
    for text in ended:
        jsonschema.validate(json.loads(text), SCHEMA)
    assert len(set(ended)) > 1, "each choice has a seed of its own"

    def costs() -> list[tuple[int, int] | None]:
        steps = steplog.read_step_log(lab_server(stack, **settings).run_dir, engine)
        return [None if step.mask_us is None else (step.mask_us, step.engine_us or 0) for step in steps]

    for mask, whole in filter(None, eventually(lambda: [one for one in costs() if one])):
        assert 0 < mask <= whole
    client.completions.create(model=model, prompt=PROMPT, max_tokens=3)
    eventually(lambda: costs()[-1] is None)


@pytest.mark.parametrize(("stack", "settings", "model", "engine"), MASKING)
def test_a_stream_is_the_whole_answer_and_one_that_is_cut_its_beginning(
    stack: str, settings: dict[str, Any], model: str, engine: str, doors: Doors
) -> None:
    client = doors(stack, **settings)
    asked: dict[str, Any] = {"seed": 4, "temperature": 1.0}
    whole = ask(client, model, **asked).choices[0]
    chunks = [chunk.choices[0] for chunk in ask(client, model, **asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert chunks[-1].finish_reason == whole.finish_reason
    cut = ask(client, model, **{**asked, "max_tokens": 5}).choices[0]
    assert cut.finish_reason == "length"
    assert whole.text.startswith(cut.text) and len(cut.text) < len(whole.text)


@pytest.mark.parametrize(("stack", "settings", "model", "engine"), MASKING[:1])  # vllm_model has no fp32
def test_an_answer_without_a_schema_is_the_same_beside_one_that_has_it(
    stack: str, settings: dict[str, Any], model: str, engine: str, doors: Doors
) -> None:
    client = doors(stack, **settings)
    plain: dict[str, Any] = {"model": model, "prompt": PROMPT, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    create: Any = client.completions.create
    alone = create(**plain).choices[0].text
    with ThreadPoolExecutor() as pool:
        masked = [pool.submit(ask, client, model, seed=seed, temperature=1.0) for seed in (1, 2)]
        beside = pool.submit(create, **plain)
        assert beside.result().choices[0].text == alone
        for one in masked:
            assert one.result().choices[0].text.startswith("{")


@pytest.mark.parametrize(("stack", "settings", "model", "engine"), MASKING)
def test_a_schema_that_cannot_be_followed_is_a_fault_of_the_request(
    stack: str, settings: dict[str, Any], model: str, engine: str, doors: Doors
) -> None:
    client = doors(stack, **settings)
    endless = {"allOf": [{"type": "string", "pattern": f"(a|b)*a(a|b){{{i}}}"} for i in range(20, 40)]}
    for schema in ({"type": "foo"}, {"type": "integer", "minimum": 2, "maximum": 1}, endless):
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, model, response_format=form)
        assert caught.value.param == "response_format"
    assert ask(client, model, max_tokens=3).choices[0].text


@vllm
def test_vllms_model_gives_log_probabilities(doors: Doors) -> None:
    client = doors("vllm-backend", **BACKEND)
    asked: dict[str, Any] = {"model": "vllm_model", "prompt": PROMPT, "max_tokens": 8, "logprobs": 2, "temperature": 0}
    choice = client.completions.create(**asked).choices[0]
    found = choice.logprobs
    assert found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
    assert len(found.tokens) == 8 and "".join(found.tokens) == choice.text
    for token, logprob, rivals in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert rivals[token] == logprob == max(rivals.values()), "greedy: the likeliest token"
        assert len(rivals) == 2 and sum(map(math.exp, rivals.values())) <= 1
    streamed = [chunk.choices[0].logprobs for chunk in client.completions.create(**asked, stream=True)]
    assert [token for chunk in streamed if chunk for token in chunk.tokens or []] == found.tokens
    chat = client.chat.completions.create(
        model="vllm_model", messages=[{"role": "user", "content": "Who?"}], max_tokens=4, logprobs=True, top_logprobs=3
    ).choices[0]
    assert chat.logprobs and chat.logprobs.content
    assert [len(one.top_logprobs) for one in chat.logprobs.content] == [3] * len(chat.logprobs.content)
