"""One HTTP exchange: the body in, the answer out, and what becomes of a client that leaves or takes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from labdoor.answers import Answer
from labdoor.counters import DoorCounters
from labdoor.errors import ApiError, deadline_error

MOST_BODY = 4 * 2**20  # bytes
BODY_S = 60.0  # for all of it
SEND_BUFFER = 64 * 2**10  # bytes of an answer that the kernel keeps for a client
RECEIVE_BUFFER = 32 * 2**10  # bytes of a request that are read at once, twice as many at most
EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def limit_send_buffer(listening: socket.socket) -> socket.socket:
    """Bound what the kernel keeps for each client of a socket. Returns the same socket.

    By default the kernel keeps megabytes of an answer, and takes more only when the client has read a third of them: a
    client that reads slowly but steadily would seem to take nothing. What has been received is parsed at once, which
    takes a second for 256 kB of a body in chunks of one byte: so little is received at once. Nothing waits for the
    client to acknowledge what was sent before (TCP_NODELAY): asyncio sets that only for sockets of its own, and a first
    token was 50 ms late on a connection that had been used before.
    """
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
    if listening.family != socket.AF_UNIX:
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


async def body(receive: Receive, headers: Mapping[str, str]) -> bytes:
    """The request's body. Raises Refusal if it is too long, or does not come in time."""
    read = bytearray()
    more = True
    too_long = ApiError(413, f"the body has more than {MOST_BODY:,} bytes", code="content_too_large")
    if int(headers.get("content-length", 0)) > MOST_BODY:
        raise too_long
    try:
        async with asyncio.timeout(BODY_S):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ApiError(400, "the client left before its request was whole")
                read += message.get("body", b"")
                more = message.get("more_body", False)
                if len(read) > MOST_BODY:
                    raise too_long
    except TimeoutError:
        why = f"the body was not whole after {BODY_S:g} s"
        raise ApiError(408, why, code="timeout", headers={"Connection": "close"}) from None
    return bytes(read)


class Exchange(Response):
    """The answer to one request, as an ASGI response.

    The event loop's thread owns every field of it, and the counters. One that is given up is counted before its model's
    side is closed, any other before its end is handed over: nobody sees what follows before the count.

    Args:
        stalled: seconds after which a client that takes nothing is given up, and its request cancelled.
        timeout: seconds for the whole answer.
        began: when the request came, ``time.monotonic()``.
    """

    def __init__(
        self,
        answer: Answer,
        model: str,
        stream: bool,
        counters: DoorCounters,
        timeout: float,
        stalled: float,
        began: float,
        headers: Mapping[str, str],
    ) -> None:
        self._answer = answer
        self._model = model
        self._stream = stream
        self._counters = counters
        self._timeout = timeout
        self._stalled = stalled
        self._began = began
        self._own_headers = headers
        self._status = 0  # of the response that was begun
        self._sending = 0.0  # since when the connection takes no more, in the loop's time; 0: it does
        self._why = ""  # the reason why the answer was given up
        self._over = self._counted = False
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        gone = self._loop.create_task(_until_gone(receive))
        gone.add_done_callback(lambda _: self._give_up("left"))
        self._timer = self._loop.call_later(self._stalled, self._look)
        self._counters.running += 1
        try:
            await self._work(scope, receive, send)
        except asyncio.CancelledError:
            if not self._why:
                raise
        finally:
            self._over = True
            self._counters.running -= 1
            self._timer.cancel()
            gone.cancel()
            self._count()

    def _count(self) -> None:
        if not self._counted:
            self._counted = True
            self._counters.tokens.labels(self._model).inc(self._answer.tokens)
            self._counters.requests.labels(self._model, str(self._status or 499)).inc()

    def _give_up(self, why: str) -> None:
        if not self._over and not self._why and self._task:
            self._why = why
            self._counters.left.labels(why).inc()
            self._task.cancel()

    def _look(self) -> None:
        """One timer looks after a whole answer: a deadline of its own for each text costs more than the text."""
        due = (self._sending or self._loop.time()) + self._stalled
        if due <= self._loop.time():
            self._give_up("slow")
        else:
            self._timer = self._loop.call_at(due, self._look)

    async def _work(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await (self._chunks(send) if self._stream else self._whole(scope, receive, send))
        except (ApiError, TimeoutError) as error:
            refusal = error if isinstance(error, ApiError) else deadline_error(self._timeout)
            if not self._status:
                self._status = refusal.status
                self._count()
                await refusal.response(self._own_headers)(scope, receive, send)
            else:  # the status has been sent: an event says it, as OpenAI's clients expect
                await self._send(send, f"data: {json.dumps(refusal.body())}\n\n".encode(), last=True)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        text = await self._answer.whole()
        self._counters.ttft.labels(self._model).observe(time.monotonic() - self._began)
        self._status = 200
        self._count()
        await Response(text, 200, dict(self._own_headers), "application/json")(scope, receive, send)

    async def _chunks(self, send: Send) -> None:
        async with contextlib.aclosing(self._answer.chunks()) as chunks:
            async for events, last in chunks:
                if self._status:
                    await self._send(send, events, last)
                    continue
                self._status = 200
                encoded = [(name.encode(), value.encode()) for name, value in self._own_headers.items()]
                await send({"type": "http.response.start", "status": 200, "headers": [*EVENT_STREAM, *encoded]})
                self._counters.ttft.labels(self._model).observe(time.monotonic() - self._began)
                await self._send(send, events, last)

    async def _send(self, send: Send, events: bytes, last: bool) -> None:
        """Hand events to the connection; waits while its buffer is full."""
        if last:
            self._count()
        self._sending = self._loop.time()
        await send({"type": "http.response.body", "body": events, "more_body": not last})
        self._over, self._sending = last, 0.0


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
