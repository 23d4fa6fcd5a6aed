"""The request bodies of OpenAI's API, checked.

The fields that a text model of Triton can honour are here with their ranges; all others that the API knows are refused
by name, unless they ask for nothing.

The status is that of Triton's own OpenAI frontend: 422 where a body is malformed (a type, a range, a field that is
missing or unknown), 400 where it is well formed and the models cannot do it.

A body is bounded before objects are made of it (``MOST_VALUES``), and a list's first error ends the look at it: what
one body costs is a small multiple of its size.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, TypeVar

from openai.types import chat, completion_create_params
from openai.types.chat import completion_create_params as chat_params
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from labdoor.errors import ApiError

MOST_CHOICES = 16
MOST_VALUES = 100_000  # texts, lists, objects and commas of a body: a chat of 10,000 turns has 80,000
MOST_FIELDS = 100  # of an object that is not a schema
MOST_SCHEMA = 2**16  # characters of a JSON schema, as the models take it
#: A text, whole or not, or the beginning of a further value.
VALUE = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)
BOM = b"\xef\xbb\xbf"
#: Fields without any effect on an answer. They are accepted, whatever they hold.
IGNORED = (
    "annotations",
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "service_tier",
    "user",
)
#: Values that ask for nothing, of fields that are refused otherwise.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
    "logprobs": (False, 0),  # Triton's own frontend gives none for 0 either, and its tests ask for that
    "min_p": (0, 0.0),
    "min_tokens": (0,),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
}
#: Fields whose values are checked, and which no model here can honour.
UNABLE = ("min_tokens",)
#: Roles and parts of a message that the API knows, and a model that continues texts cannot take.
NOT_TEXT = ("file", "function", "image_url", "input_audio", "refusal", "tool")
MOST_FAULTS = 10  # of a body, listed in its refusal
#: Fields of the API and of vLLM's: of a request, of a message.
KNOWN = {
    *completion_create_params.CompletionCreateParamsBase.__annotations__,
    *chat_params.CompletionCreateParamsBase.__annotations__,
    *("bad_words", "allowed_token_ids", "chat_template", "chat_template_kwargs", "guided_json", "guided_regex"),
    *("prompt_logprobs", "stop_token_ids", "structured_outputs", "truncate_prompt_tokens", *NEUTRAL),
}
KNOWN_OF_MESSAGE = {
    *chat.ChatCompletionAssistantMessageParam.__annotations__,
    *chat.ChatCompletionToolMessageParam.__annotations__,
    *("reasoning", "reasoning_content"),
}
Kind = TypeVar("Kind", bound="CommonRequest")
JSON: TypeAdapter[Any] = TypeAdapter(Any)
Word = Annotated[str, Field(min_length=1, max_length=1000)]


class Given(BaseModel):
    """An object of a body. A field that asks for nothing is as good as absent."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nothing(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        if len(given) > MOST_FIELDS:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")
        return {name: value for name, value in given.items() if not cls._asks_nothing(name, value)}

    @classmethod
    def _asks_nothing(cls, name: str, value: Any) -> bool:
        if name in IGNORED or value is None:
            return True
        if any(value == neutral and type(value) is type(neutral) for neutral in NEUTRAL.get(name, ())):
            return True
        return name not in cls.model_fields and _is_nothing(value)


def _is_nothing(value: Any) -> bool:
    """Whether there is nothing in a value: null, an empty text, or a list or an object of such alone."""
    if isinstance(value, dict):
        return all(map(_is_nothing, value.values()))
    if isinstance(value, list):
        return all(map(_is_nothing, value))
    return value in (None, "")


class _StreamOptions(Given):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool = False


class _JsonSchema(Given):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    description: str | None = None
    content: Annotated[dict[str, Any], Field(alias="schema")]
    strict: bool | None = None

    @classmethod
    def _asks_nothing(cls, name: str, value: Any) -> bool:
        return name != "schema" and super()._asks_nothing(name, value)


class _ResponseFormat(Given):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _JsonSchema | None = None


class CommonRequest(Given):
    """The fields that both endpoints have. The model's default holds for an absent field.

    ``top_k``, ``repetition_penalty``, ``ignore_eos`` and ``min_tokens`` are extensions, named as in vLLM.
    """

    model: str
    max_tokens: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    min_tokens: Annotated[int | None, Field(ge=0)] = None
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    top_p: Annotated[float | None, Field(ge=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31)] = None
    presence_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    frequency_penalty: Annotated[float | None, Field(ge=-2, le=2)] = None
    repetition_penalty: Annotated[float | None, Field(ge=1e-3, le=100)] = None
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**63)] = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] = 1
    stop: Word | Annotated[list[Word], Field(max_length=16)] = []
    stream: bool = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    response_format: _ResponseFormat | None = None

    @property
    def answer_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer is to follow; None: any text."""
        form = self.response_format
        if form is None or form.type == "text":
            return None
        return form.json_schema.content if form.json_schema else {"type": "object"}

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def rivals(self) -> int | None:
        """For how many of the likeliest tokens log probabilities are asked, beside a token's own; None: for none."""
        return None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk that has the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(CommonRequest):
    prompt: str | Annotated[list[str], Field(fail_fast=True)]
    best_of: Annotated[int | None, Field(ge=1)] = None
    echo: bool = False
    logprobs: Annotated[int | None, Field(ge=0, le=5)] = None

    @property
    def rivals(self) -> int | None:
        return self.logprobs

    @property
    def prompts(self) -> list[str]:
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt


class _TextPart(Given):
    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["text"]
    text: str


class Message(Given):
    """One turn. Its parts are texts alone: a model that continues texts sees no pictures and calls no tools."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[_TextPart], Field(fail_fast=True)]
    name: str | None = None

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
    max_completion_tokens: Annotated[int | None, Field(ge=1, lt=2**31)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None

    @property
    def rivals(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def parse_body(kind: type[Kind], raw: bytes) -> Kind:
    """The request in a body. Raises Refusal, which names the field at fault."""
    raw = raw.removeprefix(BOM)
    _require_few_values(raw)
    try:
        body = JSON.validate_json(raw)
    except ValidationError as error:  # also for half a character
        raise _malformed(f"the body is not JSON: {error.errors(include_url=False)[0]['msg']}", error) from None
    if not isinstance(body, dict):
        what = f"the body must be a JSON object, not {type(body).__name__}"
        raise ApiError(422, what, detail=[{"type": "model_attributes_type", "loc": ["body"], "msg": what}])
    for name, value in body.items():
        if name not in kind.model_fields and not kind._asks_nothing(name, value):
            raise _not_offered(name)
    try:
        asked = kind.model_validate(body)
    except (ValidationError, RecursionError) as error:
        raise _refusal(error) from None
    _check(asked)
    return asked


def _require_few_values(raw: bytes) -> None:
    for number, _ in enumerate(VALUE.finditer(raw)):
        if number >= MOST_VALUES:
            raise ApiError(413, f"the body has more than {MOST_VALUES:,} values", code="content_too_large")


def _not_offered(name: str) -> ApiError:
    """A field of a request that is none of ours."""
    if name in KNOWN:
        return _unable(name)
    shown = name[:100]
    fault = {"type": "extra_forbidden", "loc": ["body", shown], "msg": "Extra inputs are not permitted"}
    return ApiError(422, f"{shown}: unknown parameter", shown, "unknown_parameter", [fault])


def _refusal(error: ValidationError | RecursionError) -> ApiError:
    if isinstance(error, RecursionError):
        return ApiError(400, "the body is nested too deeply")
    faults = error.errors(include_url=False)
    of_first_field = [fault for fault in faults if fault["loc"][:1] == faults[0]["loc"][:1]]
    first = max(of_first_field, key=lambda fault: len(fault["loc"]))  # the branch of a union that went furthest
    where = _path(first["loc"])
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden" and first["loc"][-1] in KNOWN_OF_MESSAGE:
        return _unable(where)
    if first["type"] == "missing":
        return _malformed(f"{where}: it is missing", error, where, "missing_required_parameter")
    if name == "prompt" and isinstance(first["loc"][-1], int) and isinstance(first["input"], int | list):
        return ApiError(400, "prompt: the models of this server take text, not token ids", "prompt")
    if first["type"] == "literal_error" and first["input"] in NOT_TEXT:
        return ApiError(400, f"{where}: {first['msg']}", where)
    return _malformed(f"{where}: {first['msg']}" if where else str(first["msg"]), error, where or None)


def _malformed(message: str, error: ValidationError, param: str | None = None, code: str | None = None) -> ApiError:
    faults = []
    for fault in error.errors(include_url=False)[:MOST_FAULTS]:
        path = [step[:100] if isinstance(step, str) else step for step in fault["loc"]]
        faults.append({"type": fault["type"], "loc": ["body", *path], "msg": fault["msg"]})
    return ApiError(422, message, param, code, faults)


def _unable(name: str, which: str = "it") -> ApiError:
    return ApiError(400, f"{name}: the models of this server do not support {which}", name, "unsupported_parameter")


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[0].content`; a union's branches, which pydantic adds, are left out."""
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif step.isidentifier() and step not in ("str", "int"):
            path += f".{step}" if path else step
    return path[:200]


def _check(asked: CommonRequest) -> None:
    if asked.stream_options and not asked.stream:
        raise ApiError(400, "`stream_options` can only be used when `stream` is True", "stream_options")
    if isinstance(asked, ChatRequest) and asked.top_logprobs is not None and not asked.logprobs:
        raise ApiError(400, "`top_logprobs` can only be used when `logprobs` is True", "top_logprobs")
    if (form := asked.response_format) and (form.type == "json_schema") != bool(form.json_schema):
        what = "it is missing" if form.type == "json_schema" else f"it has no meaning beside the type {form.type}"
        raise ApiError(400, f"response_format.json_schema: {what}", "response_format.json_schema")
    if (schema := asked.answer_schema) and len(json.dumps({"json": schema})) > MOST_SCHEMA:
        why = f"response_format.json_schema.schema: it has more than {MOST_SCHEMA:,} characters"
        raise ApiError(400, why, "response_format.json_schema.schema")
    if unable := next((name for name in UNABLE if getattr(asked, name, None)), ""):
        raise _unable(unable)
    if isinstance(asked, CompletionRequest):
        if not asked.prompts or "" in asked.prompts:
            raise ApiError(400, "prompt: the text is empty", "prompt")
        if asked.echo and asked.logprobs:
            raise _unable("logprobs", "of a prompt that is echoed")
        if asked.best_of not in (None, asked.n):
            raise ApiError(400, "best_of: the server keeps every answer, so it must equal n", "best_of")
        if len(asked.prompts) * asked.n > MOST_CHOICES:
            raise ApiError(400, f"prompt: at most {MOST_CHOICES} choices a request (prompts times n)", "prompt")
