"""The routes of OpenAI's API, and of the door itself."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from labdoor.answers import Answer
from labdoor.errors import ApiError, triton_gone_error
from labdoor.models import Model
from labdoor.requests import ChatRequest, CompletionRequest, TextRequest, parse_body, read_headers, receive_body
from labdoor.triton import Triton

HERE = ("127.0.0.1", "localhost", "::1")
MOST_RUNNING = 1024  # requests; more are refused
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", "x-accel-buffering": "no"}
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
Handler = Callable[[Request], Awaitable[Response]]


def make_app(endpoint: str, models: Mapping[str, Model], started: Callable[[], None] = lambda: None) -> Starlette:
    """The application in front of the server at ``endpoint`` (gRPC); ``started`` is called when it is ready."""
    return _Door(endpoint, models, started).app


class Counters:
    """The door's own, for Prometheus: Triton has the rest on its metrics port. One registry for one door."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter("labs_door_requests", "Requests by HTTP status", ["model", "code"], registry=registry)
        self.running = 0
        gauge = Gauge("labs_door_running", "Requests that are being answered", registry=registry)
        gauge.set_function(lambda: self.running)
        help = "From a request's arrival to its first text"
        self.ttft = Histogram("labs_door_first_text_seconds", help, ["model"], buckets=SECONDS, registry=registry)


class _Door:
    def __init__(self, endpoint: str, models: Mapping[str, Model], started: Callable[[], None]) -> None:
        self._endpoint, self._models, self._started = endpoint, models, started
        self._counters = Counters()
        self._triton: Triton
        self.app = Starlette(
            routes=[
                _route("/v1/models", self._list),
                _route("/v1/models/{name}", self._show_model),
                _route("/v1/completions", self._answering(CompletionRequest), "POST"),
                _route("/v1/chat/completions", self._answering(ChatRequest), "POST"),
                _route("/v1/embeddings", self._refuse_embeddings, "POST"),
                _route("/health", self._health),
                _route("/health/ready", self._health),
                _route("/metrics", self._metrics),
            ],
            lifespan=self._lifespan,
            exception_handlers={ApiError: _error, HTTPException: _error, Exception: _error},
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._triton = Triton(self._endpoint)
        self._started()
        try:
            yield
        finally:
            await self._triton.close()

    async def _list(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [_listed(model) for model in self._models.values()]})

    async def _show_model(self, request: Request) -> Response:
        return JSONResponse(_listed(self._model(request.path_params["name"])))

    async def _health(self, request: Request) -> Response:
        if await self._triton.ready(self._models):
            return JSONResponse({"status": "ready"})
        raise triton_gone_error("it is away, or not all of its models are ready")

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._counters.registry), media_type=CONTENT_TYPE_LATEST)

    async def _refuse_embeddings(self, request: Request) -> Response:
        why = "the models of this server continue texts; none of them makes embeddings"
        raise ApiError(400, why, code="unsupported_endpoint")

    def _answering(self, kind: type[TextRequest]) -> Handler:
        async def answer(request: Request) -> Response:
            began = time.monotonic()
            headers = read_headers(request.headers)
            asked = parse_body(kind, await receive_body(request))
            model = self._model(asked.model)
            if self._counters.running >= MOST_RUNNING:
                raise ApiError(429, f"{MOST_RUNNING:,} requests are being answered", code="too_many_requests")
            answer = await Answer.to(asked, model, self._triton, headers)
            return Reply(answer, model.name, asked.stream, self._counters, began, {"x-request-id": headers.name})

        return answer

    def _model(self, name: str) -> Model:
        if name not in self._models:
            known = ", ".join(self._models)
            raise ApiError(404, f"model: there is no {name[:100]!r}; there is: {known}", "model", "model_not_found")
        return self._models[name]


class Reply(StreamingResponse):
    """An answer as it comes. Its status is known with its first part; Starlette cancels it when its client leaves."""

    def __init__(
        self, answer: Answer, model: str, stream: bool, counters: Counters, began: float, headers: Mapping[str, str]
    ) -> None:
        kind = EVENTS if stream else {"content-type": "application/json"}
        super().__init__(answer.events() if stream else answer.whole(), headers={**kind, **headers})
        self._model, self._stream, self._counters, self._began, self._own = model, stream, counters, began, headers
        self._code = 499  # nginx's, for a client that has left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._counters.running += 1
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._counters.running -= 1
            self._counters.requests.labels(self._model, str(self._code)).inc()

    async def stream_response(self, send: Send) -> None:
        """As Starlette's, but an error before the first part is raised, and one after it is an event."""
        begun = False
        try:
            async with contextlib.aclosing(self.body_iterator) as parts:  # type: ignore[type-var]
                async for part in parts:
                    if not begun:
                        begun = True
                        self._counters.ttft.labels(self._model).observe(time.monotonic() - self._began)
                        if not self._stream:
                            self.headers["content-length"] = str(len(part))
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": part, "more_body": self._stream})
        except ApiError as error:
            if not begun:
                self._code, error.headers = error.status, self._own
                raise
            event = f"data: {json.dumps(error.body())}\n\n".encode()
            await send({"type": "http.response.body", "body": event, "more_body": True})
        self._code = 200
        if self._stream:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _listed(model: Model) -> dict[str, Any]:
    return {"id": model.name, "created": model.created, "object": "model", "owned_by": "Triton Inference Server"}


def _route(path: str, handler: Handler, method: str = "GET") -> Route:
    """A route for this machine alone: no page of another place that a person has open may use the person's models."""

    async def checked(request: Request) -> Response:
        _require_own_page(request.headers)
        return await handler(request)

    return Route(path, checked, methods=[method])


def _require_own_page(headers: Headers) -> None:
    """Raises ApiError: another name that leads to this address, or a page of another origin."""
    host = headers.get("host", "")
    if _netloc(f"//{host}")[1] not in HERE:
        why = f"the host {host[:100]!r} is not this machine's loopback"
        raise ApiError(400, why, "host", "host_not_allowed")
    if "origin" in headers and _netloc(headers["origin"])[0] != host:
        raise ApiError(403, "this server takes no calls from other pages", "origin")


def _netloc(url: str) -> tuple[str | None, str | None]:
    """A URL's host with its port, and without; nothing if it is none, such as "http://["."""
    try:
        parts = urlsplit(url)
        return parts.netloc, parts.hostname
    except ValueError:
        return None, None


async def _error(request: Request, error: Exception) -> Response:
    """Any error in the API's form. One that nobody foresaw closes its connection, as uvicorn does after it."""
    if isinstance(error, HTTPException):  # Starlette's own: no such path, no such method
        what = f"{request.method} {request.url.path[:100]}: {error.detail}"
        error = ApiError(error.status_code, what, headers=error.headers)
    if not isinstance(error, ApiError):
        error = ApiError(500, "internal error (see the server's log)", headers={"connection": "close"})
    return error.response()
