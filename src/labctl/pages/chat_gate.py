"""What may reach the chat page: the calls that the page itself makes, from its own address, with what its fields hold.

Gradio serves much that this page does not have (uploads, files of the machine, recordings) and answers a malformed
call with a traceback. So the gate before it lets through a short list, and checks the one call that carries data.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

from labctl.pages.address import is_own_user
from labctl.pages.gate import objection

if TYPE_CHECKING:
    from labctl.pages.chat import Scheduler

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Field = Callable[[Any], bool]

JOIN = "/gradio_api/queue/join"
SCHEDULER = "/scheduler"  # leads to the live page
POSTS = (JOIN, "/gradio_api/cancel", "/gradio_api/reset")
GETS = (
    "/",
    "/config",
    "/theme.css",
    "/favicon.ico",
    "/manifest.json",
    "/robots.txt",
    "/gradio_api/info",
    "/gradio_api/queue/data",
    "/gradio_api/startup-events",
    "/gradio_api/app_id",
)
FOLDERS = ("/assets/", "/static/", "/svelte/", "/pwa_icon", "/gradio_api/heartbeat/")
KEPT = ("data", "event_data", "fn_index", "trigger_id", "session_hash")
MAX_BODY, MAX_TEXT, MAX_TURNS = 4 * 2**20, 2**20, 1000


class Gate:
    """An ASGI middleware.

    Args:
        calls: for each of the page's functions by its number, what its inputs may be.
        exposed: the machine's own names are good hosts too, not only loopback.
        scheduler: the stack's live page, to which ``SCHEDULER`` leads; its address holds a secret, so that it leads
            there only whoever is the same user of this machine.
    """

    def __init__(
        self,
        app: Any,
        calls: Callable[[], Mapping[int, Sequence[Field]]],
        exposed: bool,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._app, self._calls, self._exposed, self._scheduler = app, calls, exposed, scheduler

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
            receive = await self._judge(scope, receive)
            if scope["path"] == SCHEDULER:
                await _lead(send, self._where(scope))
            else:
                await self._app(scope, receive, watched)
        except _Refused as refusal:
            await _answer(send, refusal.status, str(refusal))
        except Exception:  # Gradio's; the page shows that the call failed, and nobody needs its insides
            if not begun:
                await _answer(send, 500, "the page could not answer this")

    async def _judge(self, scope: Message, receive: Receive) -> Receive:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        if why := objection(headers, self._exposed):
            raise _Refused(403, why)
        method, path = scope["method"], scope["path"]
        if method in ("GET", "HEAD") and (path in (*GETS, SCHEDULER) or path.startswith(FOLDERS)):
            return receive
        if method != "POST" or path.rstrip("/") not in POSTS:
            raise _Refused(404, "this page has no such thing")
        body = await _read(receive)
        if path.rstrip("/") == JOIN:
            body = self._check(body)
        return _replay(body, receive)

    def _where(self, scope: Message) -> str:
        """The live page's address, for whoever asks; :class:`_Refused` where it is not open, or not theirs."""
        if self._scheduler is None:
            raise _Refused(404, "this page has no such thing")
        client, server = scope.get("client"), scope.get("server")
        if not client or not server or not is_own_user(client, server[1]):
            raise _Refused(403, f"the address is for whoever started this page: {self._scheduler.command} prints it")
        address = self._scheduler.address()
        if not address:
            raise _Refused(404, f"the live page is not open: {self._scheduler.command}")
        return address

    def _check(self, body: bytes) -> bytes:
        try:
            call = json.loads(body)
            fields, values = self._calls()[call["fn_index"]], call["data"]
            good = (
                isinstance(values, list)
                and len(values) == len(fields)
                and all(field(value) for field, value in zip(fields, values, strict=True))
                and isinstance(call["session_hash"], str)
                and call["session_hash"].replace("-", "").isalnum()
            )
        except (ValueError, KeyError, TypeError, RecursionError):
            good = False
        if not good:
            raise _Refused(400, "this is no call that the page makes")
        return json.dumps({key: call[key] for key in KEPT if key in call}).encode()


class _Refused(Exception):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def fields(config: Mapping[str, Any]) -> dict[int, list[Field]]:
    """The functions of a Gradio page that can be called, from its own configuration, and what each input may be."""
    kinds = {item["id"]: (item["type"], item["props"]) for item in config["components"]}
    return {
        function["id"]: [_field(*kinds[number]) for number in function["inputs"]]
        for function in config["dependencies"]
        if function["backend_fn"]
    }


def _field(kind: str, props: Mapping[str, Any]) -> Field:
    if kind == "slider":
        least, most = props["minimum"], props["maximum"]
        return lambda value: type(value) in (int, float) and least <= value <= most
    if kind == "dropdown":
        choices = [choice[1] for choice in props["choices"]]
        return lambda value: isinstance(value, str) and value in choices
    if kind == "chatbot":
        return lambda value: isinstance(value, list) and len(value) <= MAX_TURNS and all(map(_is_turn, value))
    return lambda value: isinstance(value, str) and len(value) <= MAX_TEXT


def _is_turn(turn: Any) -> bool:
    """Texts alone: a turn may otherwise name a file for Gradio to open."""
    if not isinstance(turn, dict) or turn.get("role") not in ("user", "assistant"):
        return False
    parts = turn.get("content")
    parts = [{"type": "text", "text": parts}] if isinstance(parts, str) else parts
    return isinstance(parts, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in parts
    )


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > MAX_BODY:
            raise _Refused(413, f"the page takes up to {MAX_BODY} bytes")
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return pending.pop() if pending else await receive()

    return replayed


async def _lead(send: Send, address: str) -> None:
    headers = [(b"location", address.encode()), (b"cache-control", b"no-store"), (b"referrer-policy", b"no-referrer")]
    await send({"type": "http.response.start", "status": 303, "headers": [*headers, (b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


async def _answer(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
