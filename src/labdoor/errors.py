"""The errors that a client gets in place of an answer, in the form of OpenAI's API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
INSIDE = re.compile(
    r"^internal error|failed to open|stub process|shared memory|engine has ended|gave the request up", re.IGNORECASE
)
OURS = ("StatusCode.UNKNOWN", "StatusCode.CANCELLED", "StatusCode.RESOURCE_EXHAUSTED")  # no fault of the request


@dataclass(eq=False)
class ApiError(Exception):
    """An answer that is an error.

    Attributes:
        status: HTTP's.
        message: for the client; it names the field, where one is at fault.
        param: that field.
        code: a short name by which programs tell errors apart.
        detail: each fault of the body as FastAPI lists it (``type``, ``loc``, ``msg``); None: the message says it all.
        headers: of the answer.
    """

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    detail: Sequence[Mapping[str, object]] | None = None
    headers: Mapping[str, str] | None = None

    def __str__(self) -> str:
        return self.message

    def body(self) -> dict[str, object]:
        """``error`` for OpenAI's clients, and ``detail`` for those of Triton's own OpenAI frontend (FastAPI's form)."""
        kind = KINDS.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return {"error": error, "detail": self.detail or self.message}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def triton_gone_error(why: str) -> ApiError:
    """Triton does not answer."""
    return ApiError(503, f"Triton does not answer: {why} (labctl status)", code="unavailable")


def of_triton(message: str, status: str | None) -> ApiError:
    """An error of Triton's as the API has it.

    Args:
        status: gRPC's, as tritonclient writes it ("StatusCode.UNAVAILABLE"); None for an error inside a stream.
    """
    text = re.sub(r"^(in ensemble '[^']*', )+", "", message.strip())
    name, colon, why = text.partition(": ")
    if FULL.search(text):
        return ApiError(429, f"the model's queue is full: {text}", code="queue_full")
    if TOO_LATE.search(text) or status == "StatusCode.DEADLINE_EXCEEDED":
        return ApiError(504, f"the answer was not whole in time: {text}", code="deadline_exceeded")
    if status == "StatusCode.UNAVAILABLE" or NOT_READY.search(text):
        return triton_gone_error("nothing listens at its address" if "Connection refused" in text else text)
    if INSIDE.search(text) or status in OURS:
        return ApiError(500, text)
    if colon and re.fullmatch(r"\w+", name):
        field = FIELDS.get(name, name)
        return ApiError(400, f"{field}: {why}", field)
    return ApiError(400, text)
