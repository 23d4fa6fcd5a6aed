"""The door's streams: Triton's responses as server-sent events, in as few writes as there are responses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest
from door_models import response, text_model
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk
from tritonclient.grpc import service_pb2

from labdoor import requests
from labdoor.answers import Answer
from labdoor.models import Model, Vocabulary
from labdoor.triton import RequestHeaders, first_text

AWKWARD = [" say", ' "text":""', "\n\ndata: {}", "\\", "\0", "\N{SNOWMAN}\u2028", ""]
MODEL = Model(replace(text_model(by_parameter=True), decoupled=True, logprobs="logprobs"), Vocabulary())


def streamed(text: str, final: bool = False, logprobs: str = "") -> service_pb2.ModelStreamInferResponse:
    return response(final, out=text, logprobs=logprobs)


class Call:
    """A gRPC call that has these responses, and then waits for ever."""

    def __init__(self, responses: Sequence[Any]) -> None:
        self._responses, self.cancelled = iter(responses), False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        for one in self._responses:
            return one
        return await asyncio.Event().wait()

    def __await__(self) -> Generator[Any, None, Any]:
        return self.__anext__().__await__()

    def cancel(self) -> None:
        self.cancelled = True


async def answer(call: Call, **fields: Any) -> Answer:
    kind: Any = requests.ChatRequest if "messages" in fields else requests.CompletionRequest
    asked = requests.parse_body(kind, json.dumps({"model": "m", "stream": True, **fields}).encode())
    triton: Any = SimpleNamespace(stream=lambda request, metadata: call)
    return await Answer.to(asked, MODEL, triton, RequestHeaders("id"))


def writes(call: Call, **fields: Any) -> list[tuple[bytes, bool]]:
    async def read() -> list[tuple[bytes, bool]]:
        return [one async for one in (await answer(call, **fields)).chunks()]

    return asyncio.run(read())


CHAT = {"messages": [{"role": "user", "content": "x"}], "stop": "never"}
PROMPT = {"prompt": "x"}


@pytest.mark.parametrize("usage", [False, True])
@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize(("asked", "kind"), [(CHAT, ChatCompletionChunk), (PROMPT, Completion)])
def test_each_event_has_the_fields_of_the_apis_own_type_and_the_text_is_whole(
    asked: dict[str, Any], kind: Any, logprobs: bool, usage: bool
) -> None:
    output = json.dumps([{"7": {"logprob": -0.5, "rank": 1, "decoded_token": "é"}}]) if logprobs else "[]"
    call = Call([streamed(one, final=not one, logprobs=output) for one in AWKWARD])
    more = {"logprobs": True if asked is CHAT else 1} if logprobs else {}
    found = writes(call, **asked, **more, stream_options={"include_usage": usage})
    *events, done, rest = b"".join(each for each, _ in found).decode().split("\n\n")
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


def test_a_response_is_one_write_and_the_last_one_ends_the_answer() -> None:
    call = Call([streamed(" a"), streamed(" b"), streamed(" c", final=True)])
    found = writes(call, **CHAT, max_tokens=3, stream_options={"include_usage": True})
    assert [last for _, last in found] == [False, False, True]
    assert [events.count(b"data: ") for events, _ in found] == [2, 1, 4], "role; text; text, end, usage, [DONE]"
    assert b'"finish_reason":"length"' in found[-1][0]
    usage = json.loads(found[-1][0].split(b"\n\n")[2].removeprefix(b"data: "))["usage"]
    assert usage == {"prompt_tokens": 0, "completion_tokens": 3, "total_tokens": 3}, "no tokenizer: no prompt tokens"
    assert not call.cancelled


@pytest.mark.parametrize("answered", [True, False])
def test_only_a_whole_answer_that_has_not_come_is_cancelled(answered: bool) -> None:
    responses = [streamed(" all of it").infer_response] if answered else []
    call = Call(responses)
    model = replace(MODEL, text=replace(MODEL.text, decoupled=False))
    triton: Any = SimpleNamespace(whole=lambda request, metadata: call)
    asked = requests.parse_body(requests.CompletionRequest, json.dumps({"model": "m", "prompt": "x"}).encode())

    async def leave() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20 if answered else 0):
                await (await Answer.to(asked, model, triton, RequestHeaders("id"))).whole()

    asyncio.run(leave())
    assert call.cancelled == (not answered)


def test_a_tensor_is_found_by_its_name_and_an_empty_one_is_none() -> None:
    made = streamed("text", logprobs="scores").infer_response
    assert first_text(made, "logprobs") == b"scores"
    assert first_text(made, "nothing") is None
    made.raw_output_contents[1] = b""
    assert first_text(made, "logprobs") is None


async def handles(*, model: Model, headers: RequestHeaders, n: int) -> list[tuple[str, str]]:
    """The id of each choice at Triton, and the id by which it is stopped when its client leaves."""
    sent: list[str] = []
    stopped: list[str] = []

    def stream(request: Any, metadata: Any) -> Call:
        sent.append(request.id)
        return Call([])

    triton: Any = SimpleNamespace(stream=stream, forget=lambda model, id: stopped.append(id))
    body = {"model": "m", "prompt": "x", "n": n, "temperature": 1.0, "seed": 1}
    asked = requests.parse_body(requests.CompletionRequest, json.dumps(body).encode())
    task = asyncio.create_task((await Answer.to(asked, model, triton, headers)).whole())
    while len(sent) < n:
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return list(zip(sorted(sent), sorted(stopped), strict=True))


def test_a_client_that_leaves_ends_no_request_but_its_own_whatever_ids_clients_give() -> None:
    model = replace(MODEL, stopper="tensorrt_llm")
    clients = [("77", 2), ("7701", 1), ("agent-7", 1), ("agent-7", 1), ("", 2)]

    async def leave() -> list[tuple[str, str]]:
        found = [await handles(model=model, headers=RequestHeaders(id), n=n) for id, n in clients]
        return [pair for pairs in found for pair in pairs]

    pairs = asyncio.run(leave())
    assert all(sent == stopped for sent, stopped in pairs)
    numbers = {re.match("[0-9]+", id)[0] for id, _ in pairs}  # type: ignore[index]  # what TensorRT-LLM reads of an id
    assert len(numbers) == len(pairs) == 7
