"""What clients ask: each field of a body, and each header, is accepted, ignored or refused by its name here.

A field that is absent, null or empty asks for nothing; so do the values that a field names as neutral. The status is
that of Triton's own OpenAI frontend: 422 where a request is malformed (a type, a range, a field that is missing or
unknown), 400 where it is well formed and the models cannot do it.

A body is bounded before objects are made of it, and a list's first error ends the look at it: what one body costs is a
small multiple of its size.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from starlette.requests import ClientDisconnect, Request

from labdoor.errors import ApiError
from labkit.evidence.records import request_id

MOST_BODY = 4 * 2**20  # bytes
BODY_S = 60.0  # for all of it
MOST_VALUES = 100_000  # texts, lists, objects and commas of a body: a chat of 10,000 turns has 80,000
MOST_FIELDS = 100  # of an object
MOST_FAULTS = 10  # of a body, listed in its refusal
MOST_CHOICES = 16
COMPLETION_TOKENS = 16  # OpenAI's default
ANSWER_S = 600  # for an answer, where a request does not say
#: A text, whole or not, or the beginning of a further value.
VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)
BOM = b"\xef\xbb\xbf"
#: Roles and parts of a message that the API knows, and a model that continues texts cannot take.
NOT_TEXT = ("file", "function", "image_url", "input_audio", "refusal", "tool")
JSON: TypeAdapter[Any] = TypeAdapter(Any)
Kind = TypeVar("Kind", bound="CommonRequest")


def unable(field: str, what: str = "it") -> ApiError:
    """A request that is well formed, and that no model of this server can do."""
    return ApiError(400, f"{field}: the models of this server do not support {what}", field, "unsupported_parameter")


# -- what a field may be -----------------------------------------------------------------------------------------------


def _is_nothing(value: Any) -> bool:
    """Whether there is nothing in a value: null, an empty text, or a list or an object of such alone."""
    if isinstance(value, dict):
        return all(map(_is_nothing, value.values()))
    if isinstance(value, list):
        return all(map(_is_nothing, value))
    return value in (None, "")


def _only(*neutral: object) -> AfterValidator:
    """Refuse a field by its name, unless it asks for nothing."""

    def check(value: Any, info: ValidationInfo) -> None:
        if value not in neutral and not _is_nothing(value):
            raise unable(str(info.field_name))

    return AfterValidator(check)


def _off_at(*neutral: float) -> AfterValidator:
    """Take a number that changes nothing for absent. As a tensor has it: what is next to that number is that number."""
    return AfterValidator(lambda value: None if np.float32(value) in neutral else value)


def _prompts(value: Any) -> Any:
    prompts = [value] if isinstance(value, str) else value
    if isinstance(prompts, list):
        if not prompts or "" in prompts:
            raise ApiError(400, "prompt: the text is empty", "prompt")
        if isinstance(prompts[0], int | list):
            raise ApiError(400, "prompt: the models of this server take text, not token ids", "prompt")
    return prompts


Ignored = Any  # it never changes an answer
Refused = Annotated[Any, _only()]
Word = Annotated[str, Field(min_length=1, max_length=1000)]
Words = Annotated[
    list[Word], Field(max_length=16), BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
Length = Annotated[int, Field(ge=1, lt=2**31)]
Penalty = Annotated[float, Field(ge=-2, le=2), _off_at(0)]


class _Object(BaseModel):
    """An object of a body. A field that asks for nothing is as good as absent, whatever its name."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if len(given) > MOST_FIELDS:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")
        known = _names(cls)
        return {
            name: value
            for name, value in given.items()
            if value is not None and (name in known or not _is_nothing(value))
        }


@cache
def _names(kind: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in kind.model_fields.items())


# -- the two requests --------------------------------------------------------------------------------------------------


class _StreamOptions(_Object):
    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class _JsonSchema(_Object):
    name: str
    description: Ignored = None
    strict: Ignored = None
    content: Annotated[dict[str, Any], Field(alias="schema")]


class _ResponseFormat(_Object):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None


class CommonRequest(_Object):
    """The fields that both endpoints have. The model's default holds for an absent field."""

    model: str
    max_tokens: Length | None = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float, Field(ge=0, le=1), _off_at(1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    stop: Words = []
    stream: bool = False
    stream_options: _StreamOptions | None = None
    response_format: _ResponseFormat | None = None
    # vLLM's, under its names
    top_k: Annotated[int, Field(ge=-1, lt=2**31), _off_at(0, -1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=100), _off_at(1)] | None = None
    ignore_eos: bool = False
    add_generation_prompt: Annotated[Any, _only(True)] = None
    include_stop_str_in_output: Annotated[Any, _only(False)] = None
    length_penalty: Annotated[Any, _only(1)] = None
    min_p: Annotated[Any, _only(0)] = None
    min_tokens: Annotated[Any, _only(0)] = None
    skip_special_tokens: Annotated[Any, _only(True)] = None
    spaces_between_special_tokens: Annotated[Any, _only(True)] = None
    use_beam_search: Annotated[Any, _only(False)] = None
    # of OpenAI's, what never changes an answer, and what no model here can do
    metadata: Ignored = None
    parallel_tool_calls: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None
    safety_identifier: Ignored = None
    service_tier: Ignored = None
    user: Ignored = None
    audio: Refused = None
    function_call: Refused = None
    functions: Refused = None
    logit_bias: Refused = None
    modalities: Annotated[Any, _only(["text"])] = None
    moderation: Refused = None
    prediction: Refused = None
    reasoning_effort: Annotated[Any, _only("none")] = None
    store: Annotated[Any, _only(False)] = None
    suffix: Refused = None
    tool_choice: Annotated[Any, _only("none", "auto")] = None
    tools: Refused = None
    verbosity: Annotated[Any, _only("medium")] = None
    web_search_options: Refused = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.stream_options and not self.stream:
            raise ApiError(400, "`stream_options` can only be used when `stream` is True", "stream_options")
        if (form := self.response_format) and (form.type == "json_schema") != bool(form.json_schema):
            what = "it is missing" if form.type == "json_schema" else f"it has no meaning beside the type {form.type}"
            raise ApiError(400, f"response_format.json_schema: {what}", "response_format.json_schema")
        return self

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer is to follow; None: any text."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return form.json_schema.content if form.json_schema else {"type": "object"}

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(CommonRequest):
    prompt: Annotated[list[str], Field(fail_fast=True), BeforeValidator(_prompts)]
    best_of: Annotated[int | None, Field(ge=1)] = None
    echo: bool = False
    logprobs: Annotated[int | None, Field(ge=0, le=5)] = None  # Triton's frontend gives none for 0, and its tests ask

    @model_validator(mode="after")
    def _choices(self) -> Self:
        if self.echo and self.logprobs:
            raise unable("logprobs", "those of a prompt that is echoed")
        if self.best_of not in (None, self.n):
            raise ApiError(400, "best_of: the server keeps every answer, so it must equal n", "best_of")
        if len(self.prompt) * self.n > MOST_CHOICES:
            raise ApiError(400, f"prompt: at most {MOST_CHOICES} choices a request (prompts times n)", "prompt")
        return self

    @property
    def rivals(self) -> int | None:
        """For how many of the likeliest tokens log probabilities are asked, beside a token's own; None: for none."""
        return self.logprobs or None

    @property
    def limit(self) -> int:
        """The most tokens of an answer."""
        return self.max_tokens or COMPLETION_TOKENS


class _TextPart(_Object):
    model_config = ConfigDict(extra="ignore")

    type: Literal["text"]
    text: str


class Message(_Object):
    """One turn. Its parts are texts alone: a model that continues texts sees no pictures and calls no tools."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_TextPart], Field(fail_fast=True)]
    name: Ignored = None
    annotations: Ignored = None

    @model_validator(mode="before")
    @classmethod
    def _may_be_silent(cls, given: Any) -> Any:
        """An answer may be null, as where it was a call of a tool."""
        if isinstance(given, dict) and given.get("role") == "assistant" and given.get("content", "") is None:
            return given | {"content": ""}
        return given

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(CommonRequest):
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Length | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None

    @model_validator(mode="after")
    def _likely(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "`top_logprobs` can only be used when `logprobs` is True", "top_logprobs")
        return self

    @property
    def rivals(self) -> int | None:
        """As of a completion: for how many of the likeliest tokens, beside a token's own."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        """The most tokens of an answer; None: the request does not say."""
        return self.max_completion_tokens or self.max_tokens


TextRequest = CompletionRequest | ChatRequest


# -- the headers -------------------------------------------------------------------------------------------------------


class RequestHeaders(BaseModel):
    """A request's settings from its headers, and its number.

    Attributes:
        client_id: the client's own name for it, for people: several requests may have the same.
        timeout_ms: until the answer must be whole.
        priority: 1 is the highest.
        tenant: the user or customer.
    """

    client_id: Annotated[str | None, Field(alias="x-request-id")] = None
    timeout_ms: Annotated[int | None, Field(alias="x-timeout-ms", ge=1, le=ANSWER_S * 1000)] = None
    priority: Annotated[int | None, Field(alias="x-priority", ge=1, le=9)] = None
    tenant: Annotated[str | None, Field(alias="x-tenant", max_length=64)] = None
    traceparent: str | None = None
    tracestate: str | None = None
    _number: str = PrivateAttr(default_factory=request_id)  # no other request has it

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if self.tenant is not None and not self.tenant.isprintable():
            raise ApiError(400, "x-tenant: a text of at most 64 characters", "x-tenant")
        if not re.fullmatch(r"[A-Za-z0-9._:-]{1,64}", self.client_id or ""):
            self.client_id = None
        return self

    @property
    def name(self) -> str:
        """Its name in the answer."""
        return self.client_id or self._number

    @property
    def timeout_s(self) -> float:
        return self.timeout_ms / 1000 if self.timeout_ms else ANSWER_S

    @property
    def trace(self) -> Mapping[str, str]:
        """W3C's trace context, passed on to Triton as it is where gRPC can carry it: no part needs 512 characters."""
        found = {"traceparent": self.traceparent, "tracestate": self.tracestate}
        sent = {name: text for name, text in found.items() if text and len(text) <= 512}
        return {name: text for name, text in sent.items() if text.isascii() and text.isprintable()}

    def triton_id(self, choice: int) -> str:
        """The id at Triton of one of its choices, by which the engine stops it: no other request may have it.

        The number comes first, because TensorRT-LLM's backend reads the digits that an id begins with.
        """
        number = request_id() if choice else self._number
        return f"{number}:{self.client_id}" if self.client_id else number


# -- from bytes to a request -------------------------------------------------------------------------------------------


def read_headers(headers: Mapping[str, str]) -> RequestHeaders:
    """Raises ApiError, which names the header at fault."""
    try:
        return RequestHeaders.model_validate(dict(headers))
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        raise ApiError(400, f"{fault['loc'][0]}: {fault['msg']}", str(fault["loc"][0])) from None


async def receive_body(request: Request) -> bytes:
    """Raises ApiError if it is too long, or does not come in time; what is too long by its own word is not read."""
    body = bytearray()
    too_long = ApiError(413, f"the body has more than {MOST_BODY:,} bytes", code="content_too_large")
    if int(request.headers.get("content-length", 0)) > MOST_BODY:
        raise too_long
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY:
                    raise too_long
    except ClientDisconnect:
        raise ApiError(400, "the client left before its request was whole") from None
    except TimeoutError:
        why = f"the body was not whole after {BODY_S:g} s"
        raise ApiError(408, why, code="timeout", headers={"Connection": "close"}) from None
    return bytes(body)


def parse_body(kind: type[Kind], raw: bytes) -> Kind:
    """The request in a body. Raises ApiError, which names the field at fault."""
    raw = raw.removeprefix(BOM)
    for number, _ in enumerate(VALUE.finditer(raw)):
        if number >= MOST_VALUES:
            raise ApiError(413, f"the body has more than {MOST_VALUES:,} values", code="content_too_large")
    try:
        return kind.model_validate(JSON.validate_json(raw))
    except ValidationError as error:  # also for half a character
        raise _refusal(error) from None


def _refusal(error: ValidationError) -> ApiError:
    faults = error.errors(include_url=False)
    of_first_field = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    first = max(of_first_field, key=lambda fault: len(fault["loc"]))  # the branch of a union that went furthest
    field, message, code = _path(_short(first["loc"])), first["msg"], None
    if first["type"] == "extra_forbidden":
        if len(first["loc"]) > 1:
            return unable(field)
        message, code = "unknown parameter", "unknown_parameter"
    elif first["type"] == "missing":
        message, code = "it is missing", "missing_required_parameter"
    elif first["type"] == "model_type":
        field, message = field or "body", "it must be a JSON object"
    elif first["type"] == "literal_error" and first["input"] in NOT_TEXT:
        return ApiError(400, f"{field}: {message}", field)
    listed = faults[:MOST_FAULTS]
    detail = [{"type": one["type"], "loc": ["body", *_short(one["loc"])], "msg": one["msg"]} for one in listed]
    return ApiError(422, f"{field}: {message}" if field else message, field or None, code, detail)


def _short(loc: Sequence[int | str]) -> list[int | str]:
    return [step[:100] if isinstance(step, str) else step for step in loc]


def _path(loc: Sequence[int | str]) -> str:
    """`messages[0].content`; a union's branches, which pydantic adds, are left out."""
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in loc if step != "str"]
    return "".join(step for step in steps if not step.startswith(".list[")).removeprefix(".")
