"""A gateway before a real server, whose drain follows a script: it refuses, cuts and swallows, and notes what it saw.

The other side is ``labkit.client.gateway``. Time is counted: only a client's ``sleep`` moves its clock.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from labkit.client.ask import TextStream
from labkit.client.text_model import TextModel
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts

LOOK_S = 0.01
ANSWER_S = 60.0  # a token of the server comes by then


@dataclass(frozen=True)
class TryOutcome:
    """The outcome of one try: an HTTP ``status`` other than 200, or the answer.

    Attributes:
        retry_after: seconds that a refusal names; None: none.
        cut: the number of tokens after which the connection ends; None: with the answer. 0: before its status line.
    """

    status: int = 200
    retry_after: int | None = None
    cut: int | None = None


@dataclass
class Try:
    """One request that came: when on the user's clock, under which key, after how many tokens."""

    at: float
    key: str
    after: int


@dataclass
class User:
    """One user: the script of its tries, then all are answered; and what the gateway saw of its client.

    Attributes:
        leaves: the number of tokens after which the user leaves; 0: never.
        closed: the client closed a connection before the answer was there.
    """

    script: Sequence[TryOutcome] = ()
    leaves: int = 0
    tries: list[Try] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    clock: float = 0.0
    closed: bool = False


class Draining:
    """The gateway; use as a context manager. ``url(name)`` is what that user's client is given.

    Args:
        endpoint: the server's, for gRPC.
        model: a decoupled text model.
    """

    def __init__(self, endpoint: str, model: str, users: dict[str, User]) -> None:
        self.users = users
        self.ids: list[str] = []  # of the requests that the server was sent
        self._endpoint, self._model = endpoint, TextModel.of(endpoint, model)
        self._answers: dict[str, tuple[TextStream, RequestRecord]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"gateway": self}))
        self._server.daemon_threads = True

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        for key in list(self._answers):
            self.cancel(key)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def answer(self, key: str, request: dict[str, Any]) -> RequestRecord:
        """The server's answer under this key, as far as it is there; a new key is computed."""
        with self._lock:
            if key not in self._answers:
                stream = TextStream(self._endpoint).__enter__()
                record = self._model.send(stream, request["prompt"], request["tokens"])
                self._answers[key] = stream, record
                self.ids.append(record.id)
            return self._answers[key][1]

    def cancel(self, key: str) -> None:
        """The client has gone: the server need not go on."""
        with self._lock:
            answer = self._answers.pop(key, None)
        if answer:
            stream, _ = answer
            stream.__exit__(None, None, None)


class _Handler(BaseHTTPRequestHandler):
    gateway: Draining

    def do_POST(self) -> None:
        name, _, action = self.path.strip("/").partition("/")
        user = self.gateway.users[name]
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if action == "generate":
            with contextlib.suppress(OSError):
                self._generate(name, user, body)
            return
        if action == "sleep":
            user.clock += max(0.0, float(body))
        reply: float | bool = user.clock
        if action == "show":
            user.shown.append(str(body))
            reply = not user.leaves or len(user.shown) < user.leaves
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(reply).encode())

    def _generate(self, name: str, user: User, request: dict[str, Any]) -> None:
        key, after = f"{name}/{self.headers['Idempotency-Key']}", int(self.headers["Last-Event-ID"])
        act = user.script[len(user.tries)] if len(user.tries) < len(user.script) else TryOutcome()
        user.tries.append(Try(user.clock, key, after))
        if act.status != 200:
            self.send_response(act.status)
            if act.retry_after is not None:
                self.send_header("Retry-After", str(act.retry_after))
            self.end_headers()
            return
        record = self.gateway.answer(key, request)
        if act.cut == 0:  # computed to its end, and the client gets nothing
            self._wait(lambda: record.end > 0)
            return
        self.send_response(200)
        self.end_headers()
        for number in range(after, request["tokens"] if act.cut is None else act.cut):

            def answered_or_over(number: int = number) -> bool:
                return len(record.responses) > number or record.end > 0 or self._gone()

            self._wait(answered_or_over)
            there = record.responses[number : number + 1]  # none: the server failed, or is late
            if self._gone() or not all(self._sent(json.dumps(answer).encode() + b"\n") for _, answer in there):
                self.gateway.cancel(key)
                user.closed = True
                return
            if not there:  # the connection ends
                return
        if act.cut is None:
            self.wfile.write(b"null\n")

    def _gone(self) -> bool:
        """Whether the client has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        with contextlib.suppress(ConnectionError):
            return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
        return True

    def _sent(self, line: bytes) -> bool:
        """Send a line; whether the client had not closed the connection."""
        with contextlib.suppress(OSError):
            self.wfile.write(line)
            return True
        return False

    def _wait(self, done: Callable[[], bool]) -> None:
        for _ in attempts(ANSWER_S, LOOK_S):
            if done():
                return

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: what happened is in the users."""
