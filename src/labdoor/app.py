"""The routes of OpenAI's API, and of the door itself."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from openai.types import Model as Listed
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from labdoor import requests
from labdoor.answers import Answer
from labdoor.counters import DoorCounters
from labdoor.errors import ApiError, triton_gone_error
from labdoor.exchange import Exchange, body
from labdoor.models import Model
from labdoor.triton import RequestHeaders, Triton

HERE = ("127.0.0.1", "localhost", "::1")
SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
TRACE = ("traceparent", "tracestate")
MOST_RUNNING = 1024  # requests; more are refused
MOST_PRIORITY = 9
NOT_HERE = {"/v1/embeddings": "the models of this server continue texts; none of them makes embeddings"}


@dataclass(frozen=True)
class Limits:
    """Seconds: ``timeout`` for an answer, ``stalled`` for a client that takes nothing of it."""

    timeout: float = 600.0
    stalled: float = 30.0


def make_app(
    endpoint: str, models: Mapping[str, Model], limits: Limits = Limits(), started: Callable[[], None] = lambda: None
) -> ASGIApp:
    """The application in front of the server at ``endpoint`` (gRPC); ``started`` is called when it is ready."""
    return _Door(endpoint, models, limits, started).app


class _Door:
    def __init__(self, endpoint: str, models: Mapping[str, Model], limits: Limits, started: Callable[[], None]) -> None:
        self._endpoint, self._models, self._limits, self._started = endpoint, models, limits, started
        self._counters = DoorCounters()
        self._triton: Triton | None = None
        self._answers = {
            "/v1/completions": self._answering(requests.CompletionRequest),
            "/v1/chat/completions": self._answering(requests.ChatRequest),
        }
        routes = [
            Route("/v1/models", self._list),
            Route("/v1/models/{name:path}", self._show_model),
            *(Route(path, answer, methods=["POST"]) for path, answer in self._answers.items()),
            *(Route(path, self._refused, methods=["POST"]) for path in NOT_HERE),
            Route("/health", self._health),
            Route("/health/ready", self._health),
            Route("/metrics", self._metrics),
        ]
        handlers: dict[Any, Any] = {ApiError: _refusal, HTTPException: _http_error, Exception: _unforeseen}
        self._routes = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)
        self.app = ServerErrorMiddleware(_loopback_only(self), handler=_unforeseen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers go the short way: the router and its exceptions cost as much as a few tokens."""
        posted = scope["type"] == "http" and scope["method"] == "POST"
        answer = self._answers.get(scope["path"]) if posted else None
        if answer is None:
            await self._routes(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await answer(request)
        except ApiError as error:
            response = await _refusal(request, error)
        await response(scope, receive, send)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._triton = Triton(self._endpoint)  # its channel belongs to the loop that runs
        self._started()
        try:
            yield
        finally:
            await self._triton.close()

    @property
    def triton(self) -> Triton:
        assert self._triton is not None  # set before the first request
        return self._triton

    # -- what is there -----------------------------------------------------------------------------------------------

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_listed(model) for model in self._models.values()]})

    async def _show_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not name or name.endswith("/"):  # as the router does with other paths
            return RedirectResponse(request.url.replace(path=request.url.path.rstrip("/")))
        return JSONResponse(_listed(self._model(name)))

    async def _health(self, request: Request) -> Response:
        if await self.triton.ready(self._models):
            return JSONResponse({"status": "ready"})
        raise triton_gone_error("it is away, or not all of its models are ready (labctl status)")

    async def _metrics(self, request: Request) -> Response:
        return Response(self._counters.page(), media_type=self._counters.content_type)

    async def _refused(self, request: Request) -> Response:
        raise ApiError(400, NOT_HERE[request.url.path], code="unsupported_endpoint")

    # -- answers -----------------------------------------------------------------------------------------------------

    def _answering(self, kind: type[requests.CompletionRequest] | type[requests.ChatRequest]) -> Any:
        async def answer(request: Request) -> Response:
            began = time.monotonic()
            _require_same_origin(request.headers)
            headers = _request_headers(request.headers, self._limits.timeout)
            parsed = requests.parse_body(kind, await body(request.receive, request.headers))
            model = self._model(parsed.model)
            if self._counters.running >= MOST_RUNNING:
                raise ApiError(429, f"{MOST_RUNNING:,} requests are being answered", code="too_many_requests")
            return Exchange(
                await Answer.to(parsed, model, self.triton, headers),
                model=model.name,
                stream=parsed.stream,
                counters=self._counters,
                timeout=headers.timeout,
                stalled=self._limits.stalled,
                began=began,
                headers={"x-request-id": headers.name},
            )

        return answer

    def _model(self, name: str) -> Model:
        if name not in self._models:
            known = ", ".join(self._models)
            raise ApiError(404, f"model: there is no {name[:100]!r}; there is: {known}", "model", "model_not_found")
        return self._models[name]


def _listed(model: Model) -> dict[str, Any]:
    return Listed(id=model.name, created=model.created, object="model", owned_by="Triton Inference Server").model_dump()


def _request_headers(headers: Headers, most_s: float) -> RequestHeaders:
    """The settings in the headers; ``most_s``: seconds for an answer. Raises ApiError, which names the header."""
    id = headers.get("x-request-id", "")
    timeout_ms = _number(headers, "x-timeout-ms", 1, int(most_s * 1000))
    tenant = headers.get("x-tenant", "")
    if len(tenant) > 64 or not tenant.isprintable():
        raise ApiError(400, "x-tenant: a text of at most 64 characters", "x-tenant")
    return RequestHeaders(
        id=id if SAFE_ID.fullmatch(id) else "",
        priority=_number(headers, "x-priority", 1, MOST_PRIORITY) or 0,
        tenant=tenant,
        timeout=timeout_ms / 1000 if timeout_ms else most_s,
        queue_timeout=timeout_ms is not None,
        headers={name: headers[name] for name in TRACE if _is_trace(headers.get(name, ""))},
    )


def _is_trace(text: str) -> bool:
    """Whether gRPC can carry it. No part of the trace context needs more than 512 characters (W3C)."""
    return 0 < len(text) <= 512 and text.isascii() and text.isprintable()


def _number(headers: Headers, name: str, least: int, most: int) -> int | None:
    if name not in headers:
        return None
    text = headers[name]
    if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise ApiError(400, f"{name}: a whole number from {least:,} to {most:,}", name)
    return int(text)


def _loopback_only(app: ASGIApp) -> ASGIApp:
    """The same under this machine's names alone: a web page whose name leads to this address must not reach it."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_loopback(host := Headers(scope=scope).get("host", "")):
            why = f"the host {host[:100]!r} is not this machine's loopback"
            await ApiError(400, why, "host", "host_not_allowed").response()(scope, receive, send)
            return
        await app(scope, receive, send)

    return checked


def _is_loopback(host: str) -> bool:
    """Whether a Host header has a name by which only this machine knows itself."""
    url = _split(f"//{host}")
    return url is not None and url.hostname in HERE


def _split(url: str) -> SplitResult | None:
    """The parts of a URL; None if it is none, such as "http://["."""
    try:
        return urlsplit(url)
    except ValueError:
        return None


def _require_same_origin(headers: Headers) -> None:
    """A page of another place that a person has open must not use the person's models."""
    if "origin" not in headers:
        return
    origin = _split(headers["origin"])
    if origin is None or origin.netloc != headers.get("host"):
        raise ApiError(403, "this server takes no calls from other pages", "origin")


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http_error(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:100]}: {error.detail}"
    return ApiError(error.status_code, what, headers=error.headers).response()


async def _unforeseen(request: Request, error: Exception) -> Response:
    """It closes its connection: uvicorn does so after an exception, and a proxy would send the next request on it."""
    response = ApiError(500, "internal error (see the server's log)").response()
    response.headers["connection"] = "close"
    return response
