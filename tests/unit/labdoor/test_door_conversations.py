"""Conversations as OpenAI's clients hold them: first, second and streamed turn, each client in its own words.

``data/openai_conversations.json`` has the bodies that the clients named there sent to this API before lab 02's
``iterative``, written down by a proxy between the two: of ``openai`` for Python the second turn is the message itself
and ``model_dump()`` of it, also with ``stream()``; the Vercel AI SDK has two packages for it; ``llm`` was its command
line with ``-c``. Open WebUI alone was not run: its bodies are written by hand, after what it sends.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from door_models import Scripted, response, text_model
from hypothesis import given
from hypothesis import strategies as some
from openai.types import chat, completion_create_params
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from starlette.testclient import TestClient

from labdoor import app, requests
from labdoor.models import Model
from labdoor.vocabulary import Vocabulary

RECORDED = json.loads((Path(__file__).parent / "data" / "openai_conversations.json").read_text(encoding="utf-8"))
NAME, TEXT = "iterative-gpt2", " near the river"
MODEL = Model(replace(text_model(by_parameter=True), name=NAME, decoupled=True), Vocabulary())


TRITON = Scripted([response(out=TEXT[:5]), response(True, out=TEXT[5:])])


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labdoor.app.Triton", lambda endpoint: TRITON)
        with TestClient(app.make_app("nowhere:1", {NAME: MODEL}), "http://localhost") as client:
            yield client


@pytest.mark.parametrize(
    "body",
    [pytest.param(body, id=f"{who}-{turn}") for who, every in RECORDED.items() for turn, body in enumerate(every)],
)
def test_each_clients_own_turns_are_answered_in_the_apis_form(client: TestClient, body: dict[str, Any]) -> None:
    answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    prompt = TRITON.asked[-1].raw_input_contents[0].decode(errors="replace")
    for turn in body["messages"]:
        assert f"{turn['role']}: {turn['content']}\n" in prompt
    if not body.get("stream"):
        assert ChatCompletion.model_validate(answer.json(), strict=True).choices[0].message.content == TEXT
        return
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [ChatCompletionChunk.model_validate_json(event.removeprefix("data: "), strict=True) for event in events]
    assert "".join(one.delta.content or "" for chunk in chunks for one in chunk.choices) == TEXT


@pytest.mark.parametrize("dump", [lambda said: said, lambda said: said.model_dump(), lambda said: said.to_dict()])
def test_the_answer_itself_is_taken_back_as_a_turn(client: TestClient, dump: Callable[[Any], Any]) -> None:
    """By the version of the package that is installed; the file has what a newer one made of it."""
    first = client.post("/v1/chat/completions", json={"model": NAME, "messages": [{"role": "user", "content": "Hi"}]})
    said = ChatCompletion.model_validate(first.json()).choices[0].message
    turn = dump(said) if dump(said) is not said else json.loads(said.model_dump_json())
    again = client.post(
        "/v1/chat/completions", json={"model": NAME, "messages": [turn, {"role": "user", "content": "?"}]}
    )
    assert again.status_code == 200, again.text


# -- what asks for nothing ---------------------------------------------------------------------------------------------

NOTHING: some.SearchStrategy[Any] = some.recursive(
    some.sampled_from([None, "", [], {}]),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
TURN = {*chat.ChatCompletionAssistantMessageParam.__annotations__, *chat.ChatCompletionToolMessageParam.__annotations__}
KNOWN = {
    *completion_create_params.CompletionCreateParamsBase.__annotations__,
    *TURN,
    *requests.ChatRequest.model_fields,
}
ACCEPTED = {
    *(name for name, field in requests.ChatRequest.model_fields.items() if field.annotation is not Any),
    *(requests.Message.model_fields.keys() - {"name", "annotations"}),
    *("type", "text", "include_usage"),
}
NAMES = some.sampled_from(sorted(KNOWN)) | some.text(min_size=1, max_size=9)


@given(
    fields=some.dictionaries(NAMES.filter(lambda name: name not in ACCEPTED), NOTHING, max_size=4),
    level=some.integers(0, 4),
)
def test_fields_that_ask_for_nothing_pass_at_every_level(fields: dict[str, Any], level: int) -> None:
    more = [fields if number == level else {} for number in range(5)]
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"} | more[0]]} | more[1],
            {"role": "assistant", "content": "b"} | more[2],
        ],
        "stream": True,
        "stream_options": {"include_usage": True} | more[3],
        **more[4],
    }
    asked = requests.parse_body(requests.ChatRequest, json.dumps(body).encode())
    assert [turn.text for turn in asked.messages] == ["a", "b"]


# -- the edges of HTTP -------------------------------------------------------------------------------------------------


def test_a_byte_order_mark_before_the_body_is_no_part_of_it(client: TestClient) -> None:
    body = b"\xef\xbb\xbf" + json.dumps({"model": NAME, "prompt": "x"}).encode()
    assert client.post("/v1/completions", content=body).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{NAME}", "/v1/chat/completions", "/health"])
def test_a_slash_too_many_redirects(client: TestClient, path: str) -> None:
    for slashed in (f"{path}/", f"{path}/?a=b"):
        answer = client.get(slashed, follow_redirects=False)
        assert answer.status_code == 307
        assert answer.headers["location"] == f"http://localhost{slashed.replace('/?', '?').removesuffix('/')}"


@pytest.mark.parametrize(
    "host", ["testserver", "rebound.example", "localhost.example:9000", "[::2]:1", "[::1", "", "127.0.0.2"]
)
def test_a_foreign_host_is_refused_in_the_apis_form(client: TestClient, host: str) -> None:
    answer = client.get("/v1/models", headers={"host": host})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("host_not_allowed", "host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9000", "127.0.0.1:1", "[::1]", "[::1]:9000"])
def test_this_machines_own_names_are_taken(client: TestClient, host: str) -> None:
    assert client.get("/v1/models", headers={"host": host}).status_code == 200
