"""The routes of OpenAI's API, and of the door itself."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

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
from labkit.records import request_id

HERE = ("127.0.0.1", "localhost", "::1")  # the names of an API that is not exposed
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
    endpoint: str,
    models: Mapping[str, Model],
    limits: Limits = Limits(),
    fronted: bool = False,
    started: Callable[[], None] = lambda: None,
) -> ASGIApp:
    """The application in front of the server at ``endpoint`` (gRPC).

    Args:
        fronted: a proxy in front of it has authenticated clients, so it answers under any host name.
        started: called when it is ready to answer.
    """
    return _Door(endpoint, models, limits, fronted, started).app


class _Door:
    def __init__(
        self, endpoint: str, models: Mapping[str, Model], limits: Limits, fronted: bool, started: Callable[[], None]
    ) -> None:
        self._endpoint, self._models, self._limits, self._started = endpoint, models, limits, started
        self._counters = DoorCounters()
        self._triton: Triton | None = None
        self._answers = {
            "/v1/completions": self._asking(requests.CompletionRequest),
            "/v1/chat/completions": self._asking(requests.ChatRequest),
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
        exceptions: dict[Any, Any] = {ApiError: _refusal, HTTPException: _http, Exception: _unforeseen}
        self._routes = Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=exceptions)
        entrance: ASGIApp = self if fronted else _here_alone(self)
        self.app = ServerErrorMiddleware(entrance, handler=_unforeseen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers go the short way: the router and its exceptions cost as much as a few tokens."""
        asked = self._answers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if asked is None:
            await self._routes(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await asked(request)
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

    def _asking(self, kind: type[requests.CompletionRequest] | type[requests.ChatRequest]) -> Any:
        async def answer(request: Request) -> Response:
            began = time.monotonic()
            _same_origin(request.headers)
            standing = _standing(request.headers, self._limits.timeout)
            asked = requests.parse_body(kind, await body(request.receive, request.headers))
            model = self._model(asked.model)
            if self._counters.running >= MOST_RUNNING:
                raise ApiError(429, f"{MOST_RUNNING:,} requests are being answered", code="too_many_requests")
            headers = {"x-request-id": standing.id}
            return Exchange(
                await Answer.to(asked, model, self.triton, standing),
                model.name,
                asked.stream,
                self._counters,
                standing.timeout,
                self._limits.stalled,
                began,
                headers,
            )

        return answer

    def _model(self, name: str) -> Model:
        if name not in self._models:
            there = ", ".join(self._models)
            raise ApiError(404, f"model: there is no {name[:100]!r}; there is: {there}", "model", "model_not_found")
        return self._models[name]


def _listed(model: Model) -> dict[str, Any]:
    return Listed(id=model.name, created=model.created, object="model", owned_by="Triton Inference Server").model_dump()


def _standing(headers: Headers, most: float) -> RequestHeaders:
    """The settings in the headers. Raises Refusal, which names the header."""
    given = headers.get("x-request-id", "")
    timeout = _number(headers, "x-timeout-ms", 1, int(most * 1000))
    tenant = headers.get("x-tenant", "")
    if len(tenant) > 64 or not tenant.isprintable():
        raise ApiError(400, "x-tenant: a text of at most 64 characters", "x-tenant")
    return RequestHeaders(
        id=given if SAFE_ID.fullmatch(given) else request_id(),
        priority=_number(headers, "x-priority", 1, MOST_PRIORITY) or 0,
        tenant=tenant,
        timeout=timeout / 1000 if timeout else most,
        queue_timeout=timeout is not None,
        headers={name: headers[name] for name in TRACE if _is_trace(headers.get(name, ""))},
    )


def _is_trace(said: str) -> bool:
    """Whether gRPC can carry it. Longer than 512 characters no part of the trace context need be (W3C)."""
    return 0 < len(said) <= 512 and said.isascii() and said.isprintable()


def _number(headers: Headers, name: str, least: int, most: int) -> int | None:
    if name not in headers:
        return None
    text = headers[name]
    if not re.fullmatch(r"[0-9]{1,12}", text) or not least <= int(text) <= most:
        raise ApiError(400, f"{name}: a whole number from {least:,} to {most:,}", name)
    return int(text)


def _here_alone(app: ASGIApp) -> ASGIApp:
    """It under this machine's names alone: the name of a web page, led to this address, must not reach it."""

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _host(said := Headers(scope=scope).get("host", "")) not in HERE:
            why = f"the host {said[:100]!r} is not this machine's loopback; labctl openai STACK --expose takes others"
            await ApiError(400, why, "host", "host_not_allowed").response()(scope, receive, send)
            return
        await app(scope, receive, send)

    return checked


def _host(said: str) -> str | None:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{said}").hostname
    except ValueError:
        return None


def _same_origin(headers: Headers) -> None:
    """A page of another place that a person has open must not use the person's models."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        raise ApiError(403, "this server takes no calls from other pages", "origin")


async def _refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _http(request: Request, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    what = f"{request.method} {request.url.path[:100]}: {error.detail}"
    return ApiError(error.status_code, what, headers=error.headers).response()


async def _unforeseen(request: Request, error: Exception) -> Response:
    return ApiError(500, "internal error (see the server's log)").response()
