"""What may reach the chat page: the calls that the page itself makes, from its own address, with what its fields hold.

Gradio serves much that this page does not have (uploads, files of the machine, recordings) and answers a malformed
call with a traceback. So the gate before it lets through a short list, and checks the one call that carries data.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from labctl.pages.address import is_own_user
from labctl.pages.gate import objection, read_body
from labkit.errors import LabError

if TYPE_CHECKING:
    from labctl.pages.chat import Page, Scheduler

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JOIN = "/gradio_api/queue/join"
SCHEDULER = "/scheduler"  # leads to the live page
POSTS = (JOIN, "/gradio_api/cancel", "/gradio_api/reset")
FILES = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json", "/robots.txt")
GETS = (*FILES, *(f"/gradio_api/{name}" for name in ("info", "queue/data", "startup-events", "app_id")))
FOLDERS = ("/assets/", "/static/", "/svelte/", "/pwa_icon", "/gradio_api/heartbeat/")
KEPT = ("data", "event_data", "fn_index", "trigger_id", "session_hash")
LEADING = {"cache-control": "no-store", "referrer-policy": "no-referrer"}
MAX_BODY, MAX_TEXT, MAX_TURNS = 4 * 2**20, 2**20, 1000


class Gate:
    """An ASGI middleware. ``functions`` are the numbers under which the page's one function can be called.

    ``SCHEDULER`` leads to the stack's live page, whose address holds a secret: only the same user of this machine.
    """

    def __init__(self, app: Any, page: Page, functions: Collection[int], exposed: bool) -> None:
        self._app, self._page, self._functions, self._exposed = app, page, functions, exposed

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            answer = await self._answer(Request(scope, receive))
        except HTTPException as refusal:
            answer = JSONResponse({"detail": refusal.detail}, refusal.status_code)
        if isinstance(answer, Response):
            await answer(scope, receive, send)
            return
        try:
            await self._app(scope, answer, watched)
        except Exception:  # Gradio's; the page shows that the call failed, and nobody needs its insides
            if not begun:
                await JSONResponse({"detail": "the page could not answer this"}, 500)(scope, receive, send)

    async def _answer(self, request: Request) -> Response | Receive:
        """The gate's own answer, or what Gradio is to receive. Raises HTTPException for what the page does not do."""
        if why := objection(request.headers, self._exposed):
            raise HTTPException(403, why)
        method, path = request.method, request.url.path
        if method in ("GET", "HEAD") and path == SCHEDULER and self._page.scheduler:
            return RedirectResponse(self._where(request, self._page.scheduler), 303, LEADING)
        if method in ("GET", "HEAD") and (path in GETS or path.startswith(FOLDERS)):
            return request.receive
        if method != "POST" or path.rstrip("/") not in POSTS:
            raise HTTPException(404, "this page has no such thing")
        try:
            body = await read_body(request, MAX_BODY)
        except LabError as error:
            raise HTTPException(413, error.what) from error
        if path.rstrip("/") == JOIN:
            body = self._check(body)
        pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return pending.pop() if pending else await request.receive()

        return replayed

    @staticmethod
    def _where(request: Request, scheduler: Scheduler) -> str:
        """The live page's address, for whoever asks; HTTPException where it is not open, or not theirs."""
        client, server = request.client, request.scope.get("server")
        if not client or not server or not is_own_user(client, server[1]):
            raise HTTPException(403, f"the address is for whoever started this page: {scheduler.command} prints it")
        if address := scheduler.address():
            return address
        raise HTTPException(404, f"the live page is not open: {scheduler.command}")

    def _check(self, body: bytes) -> bytes:
        try:
            call = json.loads(body)
            good = (
                call["fn_index"] in self._functions
                and isinstance(call["data"], list)
                and self._page.accepts(*call["data"])
                and isinstance(call["session_hash"], str)
                and call["session_hash"].replace("-", "").isalnum()
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise HTTPException(400, "this is no call that the page makes")
        return json.dumps({key: call[key] for key in KEPT if key in call}).encode()


def is_history(value: Any) -> bool:
    """Whether it is a conversation as the page shows one."""
    return isinstance(value, list) and len(value) <= MAX_TURNS and all(map(_is_turn, value))


def _is_turn(turn: Any) -> bool:
    """Texts alone: a turn may otherwise name a file for Gradio to open."""
    if not isinstance(turn, dict) or turn.get("role") not in ("user", "assistant"):
        return False
    parts = turn.get("content")
    parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
    return isinstance(parts, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    )
