"""The door: what OpenAI's API asks, as Triton's tensors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from door_models import text_model
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_params

from labdoor import requests
from labdoor.errors import ApiError, of_triton
from labdoor.models import Model
from labdoor.vocabulary import Vocabulary

SAID = {"model": "m", "prompt": "Hello"}


def completion(**fields: Any) -> requests.CompletionRequest:
    return requests.parse_body(requests.CompletionRequest, json.dumps(SAID | fields).encode())


def refused(kind: type[Any] = requests.CompletionRequest, **fields: Any) -> ApiError:
    body = (SAID if kind is requests.CompletionRequest else {"model": "m"}) | fields
    with pytest.raises(ApiError) as caught:
        requests.parse_body(kind, json.dumps(body).encode())
    return caught.value


# -- requests ----------------------------------------------------------------------------------------------------------


USER = {"role": "user", "content": "x"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
SCHEMA_PLACE = "response_format.json_schema"
# What does not have the API's form is 422; what has it and is not offered is 400.
REFUSED: list[tuple[int, dict[str, Any], str]] = [
    *(
        (422, {field: value}, field)
        for field, value in [
            ("temperature", 2.1),
            ("temperature", "1"),
            ("top_p", -1),
            ("max_tokens", 0),
            ("max_tokens", True),
            ("n", 17),
            ("presence_penalty", 3),
            ("seed", 2**63),
            ("ignore_eos", 123),
            ("stream", "yes"),
            ("logprobs", 7),
            ("response_format", "json"),
        ]
    ),
    *((400, {"prompt": prompt}, "prompt") for prompt in ("", [], ["x", ""], [1, 2, 3], [[1, 2, 3]])),
    (422, {"stop": ["x", ""]}, "stop[1]"),
    (400, {"logprobs": 1, "echo": True}, "logprobs"),
    (400, {"min_tokens": 2}, "min_tokens"),
    (400, {"best_of": 3}, "best_of"),
    (400, {"prompt": ["x"] * requests.MOST_CHOICES, "n": 2}, "prompt"),
    (400, {"stream_options": {"include_usage": True}}, "stream_options"),
    (400, {"response_format": {"type": "json_schema"}}, SCHEMA_PLACE),
    (400, {"response_format": {"type": "json_object", "json_schema": {"name": "x", "schema": {}}}}, SCHEMA_PLACE),
    (422, {"response_format": {"type": "regex"}}, "response_format.type"),
    (422, {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, f"{SCHEMA_PLACE}.schema"),
    (
        422,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": True}}},
        f"{SCHEMA_PLACE}.schema",
    ),
    # of a chat
    (400, {"messages": [USER], "tools": [TOOL], "tool_choice": "auto"}, "tools"),
    (400, {"messages": [USER], "min_p": 0.1}, "min_p"),
    (400, {"messages": [USER], "top_logprobs": 0}, "top_logprobs"),
    (400, {"messages": [USER], "top_logprobs": 5}, "top_logprobs"),
    (400, {"messages": [IMAGE]}, "messages[0].content[0].type"),
    (422, {"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
    (400, {"messages": [USER, {"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[1].role"),
    (400, {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}, "messages[1].tool_calls"),
    *(
        (400, {"messages": [{"role": "assistant", "content": "x", name: value}]}, f"messages[0].{name}")
        for name, value in [("function_call", {"name": "f"}), ("audio", {"id": "1"}), ("refusal", "No.")]
    ),
]


@pytest.mark.parametrize(("status", "fields", "place"), REFUSED, ids=str)
def test_what_is_malformed_or_not_offered_is_refused_by_the_name_of_its_field(
    status: int, fields: dict[str, Any], place: str
) -> None:
    error = refused(requests.ChatRequest if "messages" in fields else requests.CompletionRequest, **fields)
    assert (error.status, error.param) == (status, place)
    assert place in error.message


IGNORED = {
    *("metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    *("safety_identifier", "service_tier", "user"),
}


@pytest.mark.parametrize("params", [completion_create_params, chat_params])
def test_every_field_of_the_api_is_taken_or_refused_by_name(params: Any) -> None:
    kind = requests.CompletionRequest if params is completion_create_params else requests.ChatRequest
    fields = params.CompletionCreateParamsBase.__annotations__.keys()
    assert fields <= kind.model_fields.keys(), "each stands in the request: accepted, ignored, or refused"
    for field in (name for name in fields if kind.model_fields[name].annotation is Any):
        required = {"messages": [{"role": "user", "content": "x"}]} if kind is requests.ChatRequest else {"prompt": "x"}
        body = json.dumps({"model": "m", **required, field: ["anything"]}).encode()
        if field in IGNORED:
            requests.parse_body(kind, body)
            continue
        with pytest.raises(ApiError, match=field) as caught:
            requests.parse_body(kind, body)
        assert (caught.value.status, caught.value.param) == (400, field)
        assert caught.value.code == "unsupported_parameter"


def test_a_field_that_no_version_of_the_api_has_is_refused_as_unknown() -> None:
    error = refused(temprature=1)
    assert (error.status, error.code) == (422, "unknown_parameter")


def test_fields_that_ask_for_nothing_are_taken() -> None:
    nothing: dict[str, Any] = {"logit_bias": {}, "suffix": None, "tools": [], "logprobs": 0, "min_tokens": 0}
    asked = completion(**nothing, user="somebody", response_format={"type": "text"})
    assert asked.prompt == ["Hello"]


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
    chat: dict[str, Any] = {"model": "m", "messages": [USER]}
    kinds: list[tuple[type[requests.TextRequest], dict[str, Any]]] = [
        (requests.CompletionRequest, SAID),
        (requests.ChatRequest, chat),
    ]
    for kind, prompt in kinds:
        asked: requests.TextRequest = requests.parse_body(
            kind, json.dumps({**prompt, "response_format": form}).encode()
        )
        parameters = model.wire("x", 4, asked, 0)[1]
        assert parameters.get("structured_outputs") == (schema and json.dumps({"json": schema}))


def test_a_model_that_cannot_mask_tokens_refuses_a_response_format_by_name() -> None:
    asked = completion(response_format={"type": "json_object"})
    with pytest.raises(ApiError, match="response_format: model m cannot mask tokens") as caught:
        Model(text_model(by_parameter=True), Vocabulary()).wire("x", 4, asked, 0)
    assert (caught.value.status, caught.value.param) == (400, "response_format")


def test_a_schema_that_the_model_below_refuses_is_the_fields_fault() -> None:
    error = of_triton("in ensemble 'ensemble', structured_outputs: Invalid type: foo", "StatusCode.INVALID_ARGUMENT")
    assert (error.status, error.message, error.param) == (400, "response_format: Invalid type: foo", "response_format")


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'"x"'])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        requests.parse_body(requests.CompletionRequest, raw)
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
    assert len(detail) <= requests.MOST_FAULTS


# -- how tokens are chosen (what each field means: test_sampling_everywhere.py) ----------------------------------------


def test_without_a_seed_each_sampled_answer_has_one_of_its_own() -> None:
    model = Model(text_model("temperature", "top_p", "seed"), Vocabulary())
    seeds = {model.sampling(completion(temperature=1))["seed"] for _ in range(20)}
    assert len(seeds) > 10


@pytest.mark.parametrize(("seed", "sent"), [(0, 0), (7, 7), (-1, 2**63 - 1)])
def test_a_seed_is_sent_and_the_choices_of_one_seed_differ_in_it(seed: int, sent: int) -> None:
    model = Model(text_model("temperature", "top_p", "seed"), Vocabulary())
    first, second = (model.sampling(completion(temperature=1, seed=seed), choice)["seed"] for choice in (0, 1))
    assert first == sent and second != first


def test_what_a_model_cannot_do_is_refused_by_name() -> None:
    model = Model(text_model("temperature"), Vocabulary())
    with pytest.raises(ApiError) as caught:
        model.sampling(completion(frequency_penalty=1))
    assert (caught.value.status, caught.value.param) == (400, "frequency_penalty")


def test_greedy_is_possible_with_a_model_that_cannot_sample() -> None:
    made, parameters = Model(text_model(), Vocabulary()).wire("Hello", 4, completion(temperature=0), 0)
    assert [item.name for item in made] == ["text", "n"]
    assert parameters == {}


def test_a_model_asked_by_parameters_gets_them_as_such() -> None:
    model = Model(text_model(by_parameter=True), Vocabulary())
    _, parameters = model.wire("Hello", 4, completion(temperature=0.5, top_k=3, seed=9), 0)
    assert parameters == {"max_tokens": 4, "ignore_eos": False, "temperature": "0.5", "top_k": "3", "seed": "9"}


@pytest.mark.parametrize(("ignore", "value"), [(False, 7), (True, 2**32 - 1)])
def test_the_end_token_is_sent_unless_it_is_to_be_ignored(ignore: bool, value: int) -> None:
    model = Model(text_model(end=True), Vocabulary(end_id=7))
    made, _ = model.wire("Hello", 4, completion(ignore_eos=ignore), 0)
    (end,) = [item for item in made if item.name == "end_id"]
    assert int.from_bytes(end.content, "little") == value
