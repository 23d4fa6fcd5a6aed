"""The errors that a client gets in place of an answer, in the form of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from openai.types import ErrorObject
from starlette.responses import JSONResponse

KINDS = {404: "not_found_error", 429: "rate_limit_error"}
#: How Triton's tensors are called, and the field of the API that each is made of.
FIELDS = {
    "text_input": "prompt",
    "QUERY": "prompt",
    "input_ids": "prompt",
    "input_lengths": "prompt",
    "request_output_len": "max_tokens",
    "REQUEST_OUTPUT_LEN": "max_tokens",
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "random_seed": "seed",
    "structured_outputs": "response_format",
    "tenant": "x-tenant",
    "request_priority": "x-priority",
}
FULL = re.compile(r"maximum queue size", re.IGNORECASE)
NOT_READY = re.compile(r"is not (ready|found)|has no available versions|unknown model", re.IGNORECASE)
TOO_LATE = re.compile(r"request timeout expired|deadline exceeded", re.IGNORECASE)
#: gRPC's messages about a server that is not reachable, and the messages that the client gets.
AWAY = {
    "Connection refused": "nothing listens at its address (labctl status)",
    "Socket closed": "it ended before the answer was whole (labctl status)",
    "Connection reset": "it ended before the answer was whole (labctl status)",
}
OURS = ("StatusCode.UNKNOWN", "StatusCode.CANCELLED", "StatusCode.RESOURCE_EXHAUSTED")  # no fault of the request
INSIDE = re.compile(
    r"^internal error|failed to open|stub process|shared memory|engine has ended|gave the request up", re.IGNORECASE
)


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: HTTP's.
        message: for the client; it names the field, where one is at fault.
        param: that field.
        code: a short name by which programs tell errors apart.
        detail: each fault of the body as FastAPI lists it (``type``, ``loc``, ``msg``); None: the message says it all.
        headers: of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        detail: Sequence[Mapping[str, object]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.detail = detail
        self.headers = headers

    def body(self) -> dict[str, object]:
        """``error`` for OpenAI's clients, and ``detail`` for those of Triton's own OpenAI frontend (FastAPI's form)."""
        kind = KINDS.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        error = ErrorObject(message=self.message, type=kind, param=self.param, code=self.code)
        return {"error": error.model_dump(exclude_unset=True), "detail": self.detail or self.message}

    def response(self, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """The same as HTTP has it, with more headers."""
        return JSONResponse(self.body(), self.status, {**(headers or {}), **(self.headers or {})})


def deadline_error(seconds: float) -> ApiError:
    return ApiError(
        HTTPStatus.GATEWAY_TIMEOUT, f"the answer was not whole after {seconds:g} s", code="deadline_exceeded"
    )


def triton_gone_error(why: str) -> ApiError:
    """Triton does not answer."""
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, f"Triton does not answer: {why}", code="unavailable")


def of_triton(message: str, status: str | None) -> ApiError:
    """An error of Triton's as the API has it.

    Args:
        status: gRPC's, as tritonclient writes it ("StatusCode.UNAVAILABLE"); None for an error inside a stream.
    """
    text = re.sub(r"^(in ensemble '[^']*', )+", "", message.strip())
    name, colon, why = text.partition(": ")
    if FULL.search(text):
        return ApiError(HTTPStatus.TOO_MANY_REQUESTS, f"the model's queue is full: {text}", code="queue_full")
    if TOO_LATE.search(text) or status == "StatusCode.DEADLINE_EXCEEDED":
        return ApiError(HTTPStatus.GATEWAY_TIMEOUT, text, code="deadline_exceeded")
    if status == "StatusCode.UNAVAILABLE" or NOT_READY.search(text):
        return triton_gone_error(next((words for sign, words in AWAY.items() if sign in text), text))
    if INSIDE.search(text) or status in OURS:
        return ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, text)
    if colon and re.fullmatch(r"\w+", name):
        field = FIELDS.get(name, name)
        return ApiError(HTTPStatus.BAD_REQUEST, f"{field}: {why}", param=field)
    return ApiError(HTTPStatus.BAD_REQUEST, text)
