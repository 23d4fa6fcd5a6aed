"""The server of a live page, for a stack that is up or a run that is over: its events, and a person's actions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from labctl.clock import Clock
from labctl.lab import Lab
from labctl.pages import address, gate
from labctl.pages.live import replay
from labctl.pages.live.asking import Asker
from labctl.pages.live.hub import LOOK_S, Audience, Hub, PageFollower, spell
from labctl.pages.live.lines import clock_of
from labctl.pages.live.page import document
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit.errors import LabError
from labsched.vllm import reader

MAX_BODY = 256 * 2**10
MAX_PROMPT, MAX_TOKENS = 20_000, 4096
HEADERS = {
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
Act = Callable[[Mapping[str, Any]], Any]


class WatchServer:
    """Serves one page at an address that contains a secret; without the secret a client gets nothing.

    ``hub`` has the page's events (None for a run that is over). ``acts`` are the page's actions by name; each gets the
    call's JSON object. ``forwarded``: another name for it, if it has one.
    """

    def __init__(self, html: str, hub: Audience | None, acts: Mapping[str, Act]) -> None:
        self._html, self._hub, self._acts = html, hub, acts
        self.token = secrets.token_urlsafe(16)
        self.forwarded: str | None = None
        routes = [Route("/", self._page), Route("/events", self._events), Route("/{act}", self._act, methods=["POST"])]
        self._app = Starlette(routes=routes, lifespan=self._life)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Only what has the right host, no foreign origin and the secret in its path comes further than here."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        why, status = gate.objection(Headers(scope=scope), self.forwarded), 403
        first, _, rest = scope["path"].lstrip("/").partition("/")
        if not why and not secrets.compare_digest(first.encode(), self.token.encode()):
            why, status = "there is nothing here: the whole address of the page is in the terminal", 404
        if why:
            await JSONResponse({"detail": why}, status, HEADERS)(scope, receive, send)
            return
        await self._app({**scope, "path": f"/{rest}", "raw_path": None}, receive, send)

    @contextlib.asynccontextmanager
    async def _life(self, app: Starlette) -> AsyncIterator[None]:
        task = asyncio.create_task(self._hub.run()) if self._hub else None
        try:
            yield
        finally:
            if task:
                task.cancel()

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(self._html, headers=HEADERS)

    async def _events(self, request: Request) -> Response:
        if self._hub is None:
            return JSONResponse({"detail": "this run is over"}, 404)
        return StreamingResponse(self._event_stream(self._hub), media_type="text/event-stream", headers=HEADERS)

    @staticmethod
    async def _event_stream(hub: Audience) -> AsyncIterator[str]:
        await asyncio.sleep(LOOK_S)  # a client that has left by then is cancelled here, and costs no message
        queue, first, feed = hub.join()
        try:
            yield first
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), 15.0)
                except TimeoutError:
                    yield ": still here\n\n"
                    continue
                if message is None:  # it fell behind: the browser reconnects, and gets the state at that time
                    return
                lines, events = message
                yield spell([*feed.events(lines), *events])
        finally:
            hub.leave(queue)

    async def _act(self, request: Request) -> Response:
        act = self._acts.get(request.path_params["act"])
        if act is None:
            return JSONResponse({"detail": "this page has no such thing"}, 404)
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return JSONResponse({"detail": "this page takes JSON"}, 415)
        try:
            call = json.loads(await gate.read_body(request, MAX_BODY))
            if not isinstance(call, dict):
                raise ValueError("no object")
            json.dumps(call, ensure_ascii=False).encode()  # an answer may repeat what cannot be written
            return JSONResponse(await asyncio.to_thread(act, call))
        except LabError as error:
            detail = ": ".join(part for part in (error.what, error.why) if part)
            return JSONResponse({"detail": detail, "code": error.code}, 409)
        except (ValueError, KeyError, TypeError, RecursionError):
            return JSONResponse({"detail": "this is not a call of the page"}, 400)

    @contextlib.contextmanager
    def serving(self, port: int | None = None) -> Iterator[str]:
        """For the time of a block; yields the page's address. Without a ``port``: its usual one, or a free one.

        Raises LabError: the port is taken.
        """
        with address.listening_socket(port, address.WATCH) as listening:
            listening.listen()
            port = listening.getsockname()[1]
            server = uvicorn.Server(
                uvicorn.Config(
                    self, log_level="error", access_log=False, timeout_graceful_shutdown=1, lifespan="on", ws="none"
                )
            )
            thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="page", daemon=True)
            thread.start()
            try:
                yield f"http://127.0.0.1:{port}/{self.token}/"
            finally:
                if self._hub:
                    self._hub.close()
                server.should_exit = True
                thread.join(5.0)


def page_of_stack(workspace: Workspace, lab: Lab, record: Record, trouble: Callable[[bool], str | None]) -> WatchServer:
    """The server of a stack's page, not started yet.

    ``trouble`` gives what is wrong with the stack, None if nothing is; True also asks its models.

    Raises LabError: the stack does not answer.
    """
    clock = clock_of(workspace, record)
    hub = Hub(clock, record.endpoints.metrics)
    hub.trouble = trouble
    hub.chat = lambda: address.page_address(workspace, record.stack, address.CHAT)
    asker = Asker(record.endpoints.grpc, record.models, hub.tell)
    chosen = lab.stacks[record.stack].bench
    own = record.settings.get("scheduler")
    hub.head = {
        "k": "head",
        "title": f"Lab {lab.number}: {lab.title}" + (f"; {own} decides" if own else ""),
        "send": asker.models,
        "into": asker.into,
        "models": list(record.models),
        "limit": clock.limit.why if clock.limit else "",
        "chosen": chosen.model if chosen else "",
    }
    return WatchServer(document(), hub, acts(asker, clock, record.endpoints.metrics))


def page_of_run(folder: Path) -> WatchServer:
    """The server of a finished run's page, not started yet; a recording of vLLM that is being written is followed.

    Raises LabError: it has no step log.
    """
    if reader.is_recording(folder) and reader.is_written(folder):
        return WatchServer(document(), PageFollower(folder), {})
    return WatchServer(replay.replay_page(folder), None, {})


def acts(asker: Asker, clock: Clock, metrics: str) -> dict[str, Act]:
    """The actions on the page of a stack that is up; ``metrics`` is Triton's endpoint for metrics."""
    stepping = threading.Lock()

    def send(call: Mapping[str, Any]) -> Any:
        model, prompt, tokens, count = call["model"], call["prompt"], call["tokens"], call["count"]
        if model not in asker.models or count not in (1, 8):
            raise ValueError
        if not isinstance(prompt, str) or not prompt.strip() or len(prompt) > MAX_PROMPT:
            raise LabError("a prompt is needed", f"of at most {MAX_PROMPT:,} characters", code="prompt-invalid")
        if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
            raise LabError(
                "that many tokens cannot be asked for", f"1 to {MAX_TOKENS:,} can", code="tokens-out-of-range"
            )
        return {"sent": asker.send(model, prompt, tokens, count)}

    def cancel(call: Mapping[str, Any]) -> Any:
        return {"cancelled": asker.cancel(str(call["n"]))}

    def turn(call: Mapping[str, Any]) -> Any:
        model = str(call.get("model") or "") or None
        if call["do"] != "step":
            clock.act(call["do"], float(call["factor"]) if call["do"] == "slow" else 1, model)
            return {}
        if call["steps"] not in (1, 10):
            raise ValueError
        if not stepping.acquire(blocking=False):
            raise LabError("a step is being made already", code="step-in-progress")
        try:
            return {"done": clock.act("step", call["steps"], model, metrics)}
        finally:
            stepping.release()

    return {"send": send, "cancel": cancel, "clock": turn}
