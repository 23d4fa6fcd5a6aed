"""The door's connections, as uvicorn keeps them: bodies that come late, and heads without end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from contextlib import AbstractContextManager

import pytest
from door_models import listening, text_model
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp
from waiting import DEADLINE_S

from labdoor import app, requests
from labdoor.__main__ import MOST_HEAD, uvicorn_config
from labdoor.models import Model
from labdoor.vocabulary import Vocabulary

MODELS = {"m": Model(text_model(), Vocabulary())}


def door(made: ASGIApp | None = None) -> AbstractContextManager[tuple[str, int]]:
    """Where a door listens, or another application with the same settings."""
    return listening(uvicorn_config(made or app.make_app("127.0.0.1:1", MODELS), "127.0.0.1", 0))


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def taken(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    answer = b""
    while part := client.recv(2**16):
        answer += part
    return answer


def test_a_body_that_does_not_come_in_time_is_refused_and_its_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requests, "BODY_S", 0.3)
    with door() as where, socket.create_connection(where, timeout=DEADLINE_S) as client:
        client.sendall(HEAD + b"Content-Length: 1000\r\n\r\nx")
        assert taken(client).startswith(b"HTTP/1.1 408")


def test_a_client_that_is_refused_before_its_body_is_read_is_told_so_and_may_ask_again() -> None:
    size = requests.MOST_BODY + 2**20
    request = HEAD + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
    with door() as where, socket.create_connection(where, timeout=DEADLINE_S) as client:
        for _ in range(2):
            client.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(2**16)
            assert answer[9:12] == b"413"


def test_a_client_that_only_waits_for_its_answer_is_not_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labdoor.__main__.KEEP_ALIVE_S", 0.1)

    async def slow(request: Request) -> Response:
        await request.body()
        await asyncio.sleep(0.5)
        return Response("late")

    application = Starlette(routes=[Route("/", slow, methods=["POST"])])
    with door(application) as where, socket.create_connection(where, timeout=DEADLINE_S) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        assert taken(client).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize(
    "begun", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "]
)
def test_a_head_without_end_is_cut(begun: bytes) -> None:
    cut = contextlib.suppress(ConnectionError)  # a time without an end is no cut
    with door() as where, socket.create_connection(where, timeout=DEADLINE_S) as client, cut:
        client.sendall(begun + b"x" * 2 * MOST_HEAD)
        taken(client)


def test_a_long_body_in_small_parts_is_no_long_head() -> None:
    async def length(request: Request) -> Response:
        return Response(str(len(await request.body())))

    application = Starlette(routes=[Route("/", length, methods=["POST"])])
    size = 20 * MOST_HEAD
    with door(application) as where, socket.create_connection(where, timeout=DEADLINE_S) as client:
        for _ in range(2):  # on one connection
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(20):
                client.sendall(b"x" * MOST_HEAD)
            answer = b""
            while not answer.endswith(str(size).encode()):
                answer += client.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200 OK")
