"""The door: what OpenAI's API asks, as Triton's tensors; and what a client gets that leaves, is slow, or is wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient
from waiting import eventually

from labdoor import app, requests
from labdoor.answers import merged
from labdoor.counters import Counters
from labdoor.errors import Refusal, of_triton
from labdoor.exchange import MOST_BODY, Exchange
from labdoor.models import ALL_OF_IT, Model, Vocabulary
from labdoor.stops import Scanner
from labdoor.templates import ChatTemplate
from labkit.clients.text_model import Input, TextModel

SAID = {"model": "m", "prompt": "Hello"}


def text_model(*sampling: str, by_parameter: bool = False, end: bool = False) -> TextModel:
    """A model with these sampling inputs; ``by_parameter``: as lab 02's, without any."""
    inputs = {"text": Input("text", "BYTES", (1, 1))} | ({} if by_parameter else {"n": Input("n", "UINT32", (1, 1))})
    kinds = {name: Input(name, "UINT64" if name in ("seed", "top_k") else "FP32", (1, 1)) for name in sampling}
    return TextModel(
        "m",
        inputs,
        "text",
        "" if by_parameter else "n",
        "out",
        True,
        kinds,
        Input("end_id", "UINT32", (1, 1)) if end else None,
    )


def completion(**fields: Any) -> requests.CompletionRequest:
    return requests.parse(requests.CompletionRequest, json.dumps(SAID | fields).encode())


def refused(kind: type[Any] = requests.CompletionRequest, **fields: Any) -> Refusal:
    body = (SAID if kind is requests.CompletionRequest else {"model": "m"}) | fields
    with pytest.raises(Refusal) as caught:
        requests.parse(kind, json.dumps(body).encode())
    return caught.value


# -- requests ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", 2.1),
        ("temperature", "1"),
        ("top_p", -1),
        ("max_tokens", 0),
        ("max_tokens", True),
        ("n", 17),
        ("presence_penalty", 3),
        ("seed", 2**63),
        ("stop", ""),
        ("ignore_eos", 123),
        ("stream", "yes"),
        ("logprobs", 7),
        ("min_tokens", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    error = refused(**{field: value})
    assert (error.status, error.param) == (422, field)
    assert error.message.startswith(f"{field}: ")


@pytest.mark.parametrize("prompt", ["", [], ["x", ""]])
def test_an_empty_prompt_is_well_formed_and_refused(prompt: Any) -> None:
    error = refused(prompt=prompt)
    assert (error.status, error.param) == (400, "prompt")


@pytest.mark.parametrize("params", [completion_create_params, chat_params])
def test_every_field_of_the_api_is_taken_or_refused_by_name(params: Any) -> None:
    kind = requests.CompletionRequest if params is completion_create_params else requests.ChatRequest
    taken = {*kind.model_fields, *requests.IGNORED}
    for field in params.CompletionCreateParamsBase.__annotations__.keys() - taken:
        required = {"messages": [{"role": "user", "content": "x"}]} if kind is requests.ChatRequest else {}
        error = refused(kind, **required, **{field: ["anything"]})
        assert (error.status, error.param, error.code) == (400, field, "unsupported_parameter")
        assert field in error.message


def test_a_field_that_no_version_of_the_api_has_is_refused_as_unknown() -> None:
    error = refused(temprature=1)
    assert (error.status, error.code) == (422, "unknown_parameter")


TURN = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [(requests.CompletionRequest, {"logprobs": 1, "echo": True}), (requests.CompletionRequest, {"min_tokens": 2})],
)
def test_a_good_value_that_no_model_can_honour_is_refused_by_name(kind: type[Any], fields: dict[str, Any]) -> None:
    error = refused(kind, **fields)
    assert (error.status, error.code) == (400, "unsupported_parameter")
    assert error.param in fields


@pytest.mark.parametrize("count", [0, 5])
def test_top_logprobs_needs_logprobs(count: int) -> None:
    error = refused(requests.ChatRequest, **TURN, top_logprobs=count)
    assert (error.status, error.message) == (400, "`top_logprobs` can only be used when `logprobs` is True")


def test_fields_that_ask_for_nothing_are_taken() -> None:
    nothing: dict[str, Any] = {"logit_bias": {}, "suffix": None, "tools": [], "logprobs": 0, "min_tokens": 0}
    asked = completion(**nothing, user="somebody", response_format={"type": "text"})
    assert asked.prompts == ["Hello"]


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}, SCHEMA),
        ({"type": "json_object"}, {"type": "object"}),
        ({"type": "text"}, None),
    ],
)
def test_a_response_format_is_the_schema_of_the_answer(form: Any, schema: Any) -> None:
    model = Model(replace(text_model(by_parameter=True), structured=True), Vocabulary())
    for kind, prompt in ((requests.CompletionRequest, SAID), (requests.ChatRequest, {"model": "m", **TURN})):
        asked = requests.parse(kind, json.dumps({**prompt, "response_format": form}).encode())
        parameters = model.wire("x", 4, asked, 0)[1]
        assert parameters.get("structured_outputs") == (schema and json.dumps({"json": schema}))


@pytest.mark.parametrize(
    ("form", "status", "place"),
    [
        ({"type": "json_schema"}, 400, "response_format.json_schema"),
        ({"type": "json_object", "json_schema": {"name": "x", "schema": {}}}, 400, "response_format.json_schema"),
        ({"type": "regex"}, 422, "response_format.type"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, 422, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": True}},
            422,
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
            422,
            "response_format.json_schema.name",
        ),
        ("json", 422, "response_format"),
    ],
)
def test_a_response_format_that_is_none_is_refused_with_its_place(form: Any, status: int, place: str) -> None:
    error = refused(response_format=form)
    assert (error.status, error.param) == (status, place)


def test_a_model_that_cannot_mask_tokens_refuses_a_response_format_by_name() -> None:
    asked = completion(response_format={"type": "json_object"})
    with pytest.raises(Refusal, match="response_format: model m cannot mask tokens") as caught:
        Model(text_model(by_parameter=True), Vocabulary()).wire("x", 4, asked, 0)
    assert (caught.value.status, caught.value.param) == (400, "response_format")


def test_a_schema_that_the_model_below_refuses_is_the_fields_fault() -> None:
    error = of_triton("in ensemble 'ensemble', structured_outputs: Invalid type: foo", "StatusCode.INVALID_ARGUMENT")
    assert (error.status, error.message, error.param) == (400, "response_format: Invalid type: foo", "response_format")


def test_token_ids_are_refused_as_such() -> None:
    assert "token ids" in refused(prompt=[1, 2, 3]).message
    assert "token ids" in refused(prompt=[[1, 2, 3]]).message


def test_an_image_is_refused_with_its_place_in_the_messages() -> None:
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    error = refused(requests.ChatRequest, messages=messages)
    assert (error.status, error.param) == (400, "messages[0].content[0].type")


@pytest.mark.parametrize(("role", "status"), [("tool", 400), ("nobody", 422)])
def test_a_role_of_the_api_is_beyond_the_models_and_another_is_malformed(role: str, status: int) -> None:
    error = refused(requests.ChatRequest, messages=[{"role": role, "content": "x"}])
    assert (error.status, error.param) == (status, "messages[0].role")


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'"x"'])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        requests.parse(requests.CompletionRequest, raw)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("messages", "place", "fault"),
    [
        ([], ["body", "messages"], "List should have at least 1 item after validation, not 0"),
        ([{}], ["body", "messages", 0, "role"], "Field required"),
    ],
)
def test_a_malformed_body_lists_its_faults_as_fastapi_does(messages: Any, place: list[Any], fault: str) -> None:
    body = refused(requests.ChatRequest, messages=messages).body()
    assert isinstance(body["detail"], list)
    assert (body["detail"][0]["loc"], body["detail"][0]["msg"]) == (place, fault)


def test_a_body_with_many_faults_gets_a_short_list() -> None:
    detail = refused(requests.ChatRequest, messages=[{}] * 10_000).detail
    assert detail
    assert len(detail) == requests.MOST_FAULTS


# -- how tokens are chosen ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, {}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": 0, "seed": 5, "top_p": 0.5}, {"temperature": 0.0}),
        ({"temperature": 0.7, "top_k": 1}, {"temperature": 0.0}),
        ({"temperature": 1, "seed": 5}, {"temperature": 1.0, "top_p": ALL_OF_IT, "seed": 5}),
        ({"temperature": 1, "top_p": 1, "seed": 5}, {"temperature": 1.0, "top_p": ALL_OF_IT, "seed": 5}),
        ({"top_p": 0.5, "seed": -1}, {"top_p": 0.5, "seed": 2**63 - 1}),
        ({"top_k": 40, "seed": 0}, {"top_k": 40, "seed": 0}),
        ({"seed": 4}, {"temperature": 1.0, "top_p": ALL_OF_IT, "seed": 4}),
    ],
)
def test_sampling_as_the_api_means_it(fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    model = Model(text_model("temperature", "top_p", "top_k", "seed"), Vocabulary())
    assert model.sampling(completion(**fields)) == sampling


def test_without_a_seed_each_sampled_answer_has_one_of_its_own() -> None:
    model = Model(text_model("temperature", "top_p", "seed"), Vocabulary())
    seeds = {model.sampling(completion(temperature=1))["seed"] for _ in range(20)}
    assert len(seeds) > 10


def test_the_choices_of_one_seed_differ_in_it() -> None:
    model = Model(text_model("temperature", "top_p", "seed"), Vocabulary())
    assert [model.sampling(completion(temperature=1, seed=7), choice)["seed"] for choice in (0, 1)] == [7, 8]


def test_what_a_model_cannot_do_is_refused_by_name() -> None:
    model = Model(text_model("temperature"), Vocabulary())
    with pytest.raises(Refusal, match="frequency_penalty: model m cannot do this") as caught:
        model.sampling(completion(frequency_penalty=1))
    assert caught.value.param == "frequency_penalty"


def test_greedy_is_possible_with_a_model_that_cannot_sample() -> None:
    made, parameters = Model(text_model(), Vocabulary()).wire("Hello", 4, completion(temperature=0), 0)
    assert [item.name() for item in made] == ["text", "n"]
    assert parameters == {}


def test_a_model_asked_by_parameters_gets_them_as_such() -> None:
    model = Model(text_model(by_parameter=True), Vocabulary())
    _, parameters = model.wire("Hello", 4, completion(temperature=0.5, top_k=3, seed=9), 0)
    assert parameters == {"max_tokens": 4, "ignore_eos": False, "temperature": "0.5", "top_k": "3", "seed": "9"}


@pytest.mark.parametrize(("ignore", "value"), [(False, 7), (True, 2**32 - 1)])
def test_the_end_token_is_sent_unless_it_is_to_be_ignored(ignore: bool, value: int) -> None:
    model = Model(text_model(end=True), Vocabulary(end_id=7))
    made, _ = model.wire("Hello", 4, completion(ignore_eos=ignore), 0)
    (end,) = [item for item in made if item.name() == "end_id"]
    assert int.from_bytes(end._get_content(), "little") == value


# -- stop strings ------------------------------------------------------------------------------------------------------


def cut(text: str, words: list[str]) -> str:
    """The answer by the definition: the text up to the stop string that is complete first."""
    for end in range(len(text) + 1):
        if found := [word for word in words if text[:end].endswith(word)]:
            return text[: end - max(map(len, found))]
    return text


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_a_text_is_cut_at_the_first_stop_string_however_it_comes(pieces: list[str], words: list[str]) -> None:
    scanner, said = Scanner(words), ""
    for piece in pieces:
        said += scanner.add(piece)
        assert cut("".join(pieces), words).startswith(said), "nothing of a stop string was let through"
        if scanner.found:
            break
    else:
        said += scanner.add("", last=True)
    assert said == cut("".join(pieces), words)


# -- templates ---------------------------------------------------------------------------------------------------------

TURNS = [requests.Message(role="system", content="Be brief."), requests.Message(role="user", content="Hi")]


def test_a_tokenizers_own_template_is_used(tmp_path: Path) -> None:
    source = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}[answer]{% endif %}"
    )
    config = {"chat_template": source, "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert ChatTemplate.of(tmp_path).render(TURNS) == "<s>[system]Be brief.[user]Hi[answer]"


def test_a_model_without_a_template_gets_the_plain_one(tmp_path: Path) -> None:
    template = ChatTemplate.of(tmp_path)
    assert template.render(TURNS) == "system: Be brief.\nuser: Hi\nassistant:"
    assert list(template.stops) == ["\nuser:"]


def test_a_template_that_refuses_a_conversation_says_so(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('no system turns') }}")
    with pytest.raises(Refusal, match="no system turns"):
        ChatTemplate.of(tmp_path).render(TURNS)


def test_a_template_reaches_nothing_of_python(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(Refusal):
        ChatTemplate.of(tmp_path).render(TURNS)


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("in ensemble 'ensemble', request_output_len: 9 is too many", None, (400, "max_tokens")),
        ("internal error in m (see the server's log, entry 3)", "StatusCode.INTERNAL", (500, None)),
        ("Exceeds maximum queue size", "StatusCode.UNAVAILABLE", (429, None)),
        ("Request for unknown model: 'm' is not found", "StatusCode.NOT_FOUND", (503, None)),
        ("failed to connect to all addresses", "StatusCode.UNAVAILABLE", (503, None)),
        ("Request timeout expired", "StatusCode.UNAVAILABLE", (504, None)),
    ],
)
def test_tritons_errors_have_the_apis_status(message: str, status: str | None, expected: tuple[int, Any]) -> None:
    error = of_triton(message, status)
    assert (error.status, error.param) == expected


@contextmanager
def nothing_behind() -> Iterator[TestClient]:
    """A door whose Triton has gone: its port is taken by nobody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        with TestClient(app.make(endpoint, {"m": Model(text_model(), Vocabulary())})) as client:
            yield client


def test_a_triton_that_is_away_is_503_everywhere() -> None:
    with nothing_behind() as client:
        assert client.get("/health").status_code == 503
        for stream in (False, True):
            answer = client.post("/v1/completions", json=SAID | {"stream": stream})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


def test_errors_of_the_routes_have_openais_form_and_that_of_tritons_frontend() -> None:
    with nothing_behind() as client:
        found = {
            422: [
                client.post("/v1/completions", content=b"{"),
                client.post("/v1/completions", content=b'{"model": "m", "prompt": "\\ud800"}'),
                client.post("/v1/completions", content=b'{"model": "m", "prompt": "x", "\\ud800": 1}'),
            ],
            404: [
                client.get("/v1/nothing"),
                client.post("/v1/completions", json=SAID | {"model": "x"}),
                client.get("/v1/models/x"),
            ],
            405: [client.get("/v1/completions")],
            400: [client.post("/v1/embeddings", json={})],
            413: [client.post("/v1/completions", content=b"x" * (MOST_BODY + 1))],
        }
        for status, answers in found.items():
            for answer in answers:
                assert answer.status_code == status
                assert {"message", "type"} <= answer.json()["error"].keys()
                assert answer.json()["detail"]


@pytest.mark.parametrize(("name", "value"), [("x-priority", "0"), ("x-timeout-ms", "-1"), ("x-tenant", "x" * 65)])
def test_a_header_that_says_nothing_good_is_named(name: str, value: str) -> None:
    with nothing_behind() as client:
        answer = client.post("/v1/completions", json=SAID, headers={name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_another_pages_calls_and_other_names_of_this_machine_are_refused() -> None:
    with nothing_behind() as client:
        foreign = client.post("/v1/completions", json=SAID, headers={"origin": "http://elsewhere"})
        assert foreign.status_code == 403
        assert client.get("/v1/models", headers={"host": "rebound.example"}).status_code == 400


# -- exchanges ---------------------------------------------------------------------------------------------------------


class Endless:
    """An answer that never ends, and knows what was taken of it."""

    tokens = 0

    def __init__(self) -> None:
        self.taken, self.closed = 0, threading.Event()

    async def chunks(self) -> AsyncGenerator[str, None]:
        try:
            while True:
                self.taken += 1
                yield "x" * 10_000
                await asyncio.sleep(0)
        finally:
            self.closed.set()


@contextmanager
def served(answer: Any, counters: Counters, stalled: float) -> Iterator[socket.socket]:
    """A client's connection that has asked for that answer as a stream, of a real server."""

    async def route(request: Request) -> Exchange:
        return Exchange(answer, "m", True, counters, 60, stalled, time.monotonic(), {})

    server = uvicorn.Server(uvicorn.Config(Starlette(routes=[Route("/", route)]), port=0, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(server.servers[0].sockets[0].getsockname())
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            yield client
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)


def cancelled(counters: Counters, why: str) -> float:
    return counters.registry.get_sample_value("labs_door_cancelled_total", {"why": why}) or 0.0


def test_a_client_that_takes_nothing_is_given_up_and_little_was_made_for_it() -> None:
    answer, counters = Endless(), Counters()
    with served(answer, counters, stalled=0.3):
        assert answer.closed.wait(20)
        assert cancelled(counters, "slow") == 1
    # Sockets of loopback hold some MB; a queue of the door's own would have grown without end.
    assert answer.taken * 10_000 < 32 * 2**20


def test_a_client_that_leaves_cancels_its_request() -> None:
    answer, counters = Endless(), Counters()
    with served(answer, counters, stalled=60) as client:
        client.recv(100)
        client.close()
        assert answer.closed.wait(20)
        eventually(lambda: cancelled(counters, "left") == 1)


def test_choices_come_as_they_are_made_and_an_error_ends_all_of_them() -> None:
    closed = []

    async def source(
        index: int, count: int, fail: bool = False
    ) -> AsyncGenerator[tuple[int, str, tuple[()], None], None]:
        try:
            for number in range(count):
                yield index, str(number), (), None
                await asyncio.sleep(0)
            if fail:
                raise Refusal(400, "no")
        finally:
            closed.append(index)

    async def all_of(*sources: Any) -> list[Any]:
        return [part async for part in merged(sources)]

    parts = asyncio.run(all_of(source(0, 3), source(1, 5)))
    assert {index: [text for i, text, *_ in parts if i == index] for index in (0, 1)} == {
        0: ["0", "1", "2"],
        1: ["0", "1", "2", "3", "4"],
    }
    closed.clear()
    with pytest.raises(Refusal):
        asyncio.run(all_of(source(0, 10**9), source(1, 2, fail=True)))
    assert sorted(closed) == [0, 1]
