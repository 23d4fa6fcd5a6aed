"""The door's answers: Triton's responses in the API's form, in as few writes as there are responses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from checkout import ROOT
from door_models import Scripted, response, text_model
from hypothesis import given
from hypothesis import strategies as some
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from labdoor import requests
from labdoor.answers import Answer
from labdoor.errors import ApiError
from labdoor.models import Model
from labdoor.triton import first_text
from labdoor.vocabulary import Vocabulary

AWKWARD = [" say", ' "text":""', "\n\ndata: {}", "\\", "\0", "\N{SNOWMAN}\u2028", ""]
TINY = Vocabulary.of(str(ROOT / "labs" / "shared" / "models" / "tiny-gpt2"))
MODEL = Model(replace(text_model(by_parameter=True), decoupled=True, logprobs="logprobs"), TINY)
CHAT = {"messages": [{"role": "user", "content": "x"}], "stop": "never"}
PROMPT = {"prompt": "x"}


async def writes_of(triton: Any, model: Model, headers: dict[str, str], fields: dict[str, Any]) -> list[bytes]:
    kind: Any = requests.ChatRequest if "messages" in fields else requests.CompletionRequest
    asked = requests.parse_body(kind, json.dumps({"model": "m", **fields}).encode())
    answer = await Answer.to(asked, model, triton, requests.read_headers(headers))
    return [part async for part in (answer.events() if asked.stream else answer.whole())]


def writes(script: Sequence[Any], model: Model, **fields: Any) -> list[bytes]:
    """What the door writes for these responses."""
    return asyncio.run(writes_of(Scripted(script), model, {"x-request-id": "id"}, fields))


def whole(script: Sequence[Any], model: Model, **fields: Any) -> Any:
    (answer,) = writes(script, model, **fields)
    return json.loads(answer)


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize(("asked", "kind"), [(CHAT, ChatCompletionChunk), (PROMPT, Completion)])
def test_each_event_has_the_fields_of_the_apis_own_type_and_the_text_is_whole(
    asked: dict[str, Any], kind: Any, logprobs: bool, usage: bool
) -> None:
    output = json.dumps([{"7": {"logprob": -0.5, "rank": 1, "decoded_token": "é"}}]) if logprobs else "[]"
    script = [response(not one, out=one, logprobs=output) for one in AWKWARD]
    more: dict[str, Any] = {"logprobs": True if asked is CHAT else 1} if logprobs else {}
    found = writes(script, MODEL, **asked, **more, stream=True, stream_options={"include_usage": usage})
    *events, done, rest = b"".join(found).decode().split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    text, likely = "", 0
    for event in events:
        said = json.loads(event.removeprefix("data: "))
        read = kind.model_validate(said, strict=True) if kind is ChatCompletionChunk else kind.model_construct(**said)
        assert set(said) == {"id", "object", "created", "model", "choices", *(["usage"] if usage else [])}
        for choice in said["choices"]:
            assert set(choice) == {"index", "logprobs", "finish_reason", "delta" if asked is CHAT else "text"}
            text += (choice["delta"].get("content") or "") if asked is CHAT else choice["text"]
            likely += bool(choice["logprobs"])
        assert read.id.endswith("-id")
    assert text == "".join(AWKWARD)
    assert likely == (len(AWKWARD) if logprobs else 0)


@pytest.mark.parametrize(("asked", "kind"), [(CHAT, ChatCompletion), (PROMPT, Completion)])
def test_a_whole_answer_is_the_apis_own_type_with_the_text_of_the_stream(asked: dict[str, Any], kind: Any) -> None:
    script = [response(not one, out=one) for one in AWKWARD]
    answer = kind.model_validate(whole(script, MODEL, **asked, max_tokens=100), strict=True)
    (choice,) = answer.choices
    assert (choice.message.content if asked is CHAT else choice.text) == "".join(AWKWARD)
    assert (choice.finish_reason, answer.model) == ("stop", "m")


def test_a_response_is_one_write_and_the_last_one_ends_the_answer() -> None:
    script = [response(out=" a"), response(out=" b"), response(True, out=" c")]
    found = writes(script, MODEL, **CHAT, max_tokens=3, stream=True, stream_options={"include_usage": True})
    assert [events.count(b"data: ") for events in found] == [2, 1, 4], "role; text; text, end, usage, [DONE]"
    assert b'"finish_reason":"length"' in found[-1]


# -- how many tokens an answer has -------------------------------------------------------------------------------------


@given(
    words=some.lists(some.sampled_from([" the", " river", " I have", " lived", "."]), min_size=1, max_size=8),
    size=some.integers(1, 8),
)
def test_usage_is_the_tokenizers_count_in_however_many_responses_a_text_comes(words: list[str], size: int) -> None:
    """A foreign server may put several tokens into a response, or an end without text after the last one."""
    text = "".join(words)
    pieces = ["".join(words[start : start + size]) for start in range(0, len(words), size)]
    script = [*(response(out=piece) for piece in pieces), response(True)]
    usage = whole(script, MODEL, prompt="I have lived", max_tokens=1000)["usage"]
    assert TINY.tokenizer
    prompt, answer = (len(TINY.tokenizer.encode(one).ids) for one in ("I have lived", text))
    assert usage == {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


@pytest.mark.parametrize(("told", "end", "tokens"), [(b"length", "length", 20), (b"stop", "stop", None)])
def test_a_model_that_says_why_it_ended_is_believed(told: bytes, end: str, tokens: int | None) -> None:
    model = replace(MODEL, text=replace(MODEL.text, tells_end=True))
    script = [response(out=" the river", finish_reason=b"None"), response(True, out=" bank", finish_reason=told)]
    answer = whole(script, model, prompt="x", max_tokens=20)
    assert TINY.tokenizer
    counted = len(TINY.tokenizer.encode(" the river bank").ids)
    assert answer["choices"][0]["finish_reason"] == end
    assert answer["usage"]["completion_tokens"] == (tokens or counted)


def test_an_answer_that_its_model_gave_up_is_an_error_and_no_stop() -> None:
    model = replace(MODEL, text=replace(MODEL.text, tells_end=True))
    with pytest.raises(ApiError) as caught:
        whole([response(out=" the river"), response(True, finish_reason=b"abort")], model, prompt="x", max_tokens=20)
    assert (caught.value.status, caught.value.code) == (500, "generation_cut_off")


def test_a_token_for_each_response_up_to_the_limit_ends_by_its_length_however_it_is_read_again() -> None:
    """Half characters have no text of their own, and two tokens can be read again as one."""
    script = [response(out=text) for text in (" r", "iv", "er")] + [response(True, out="")]
    answer = whole(script, MODEL, prompt="x", max_tokens=4)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_without_a_tokenizer_there_is_no_usage(stream: bool) -> None:
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    found = writes([response(True, out="a")], replace(MODEL, words=Vocabulary()), prompt="x", **more)
    assert b'"usage":{' not in b"".join(found)


# -- the requests behind an answer -------------------------------------------------------------------------------------


def test_a_tensor_is_found_by_its_name_and_an_empty_one_is_none() -> None:
    made = response(out="text", logprobs="scores").infer_response
    assert first_text(made, "logprobs") == b"scores"
    assert first_text(made, "nothing") is None
    made.raw_output_contents[1] = b""
    assert first_text(made, "logprobs") is None


def test_no_request_has_the_id_of_another_whatever_ids_clients_give() -> None:
    """By it an engine stops a request whose client has left; the digits it begins with are what TensorRT-LLM reads."""
    triton = Scripted([response(True, out="a")])
    for client, n in (("77", 2), ("7701", 1), ("agent-7", 1), ("agent-7", 1), ("", 2)):
        asyncio.run(writes_of(triton, MODEL, {"x-request-id": client}, {"prompt": "x", "n": n}))
    ids = [request.id for request in triton.asked]
    numbers = {match[0] for id in ids if (match := re.match("[0-9]+", id))}
    assert len(numbers) == len(ids) == 7


def test_the_choices_of_an_answer_come_as_they_are_made_and_closing_it_ends_all_of_them() -> None:
    triton = Scripted([response(out=text) for text in ("a", "b", "c")], forever=True)

    async def leave() -> list[str]:
        asked = requests.parse_body(requests.CompletionRequest, b'{"model":"m","prompt":"x","n":3,"stream":true}')
        events = (await Answer.to(asked, MODEL, triton, requests.read_headers({}))).events()  # type: ignore[arg-type]
        texts = [""] * 3
        while min(map(len, texts)) < 3:
            (choice,) = json.loads((await anext(events)).removeprefix(b"data: "))["choices"]
            texts[choice["index"]] += choice["text"]
        assert triton.ended == []
        await events.aclose()
        return texts

    assert asyncio.run(leave()) == ["abc"] * 3
    assert sorted(triton.ended) == sorted(request.id for request in triton.asked)
