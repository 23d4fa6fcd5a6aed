"""The door: what a client gets that is wrong, leaves, or is slow."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from door_models import listening, text_model
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.testclient import TestClient
from waiting import eventually

from labdoor import app
from labdoor.answers import merge_sources
from labdoor.counters import DoorCounters
from labdoor.errors import ApiError, of_triton
from labdoor.exchange import MOST_BODY, Exchange, limit_send_buffer
from labdoor.models import Model, Vocabulary

SAID = {"model": "m", "prompt": "Hello"}


# -- errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        ("in ensemble 'ensemble', request_output_len: 9 is too many", None, (400, "max_tokens")),
        ("internal error in m (see the server's log, entry 3)", "StatusCode.INTERNAL", (500, None)),
        ("Exceeds maximum queue size", "StatusCode.UNAVAILABLE", (429, None)),
        ("Request for unknown model: 'm' is not found", "StatusCode.NOT_FOUND", (503, None)),
        ("failed to connect to all addresses", "StatusCode.UNAVAILABLE", (503, None)),
        ("Request timeout expired", "StatusCode.UNAVAILABLE", (504, None)),
        ("vLLM's engine has ended after an error (see the server's log); restart the stack", None, (500, None)),
    ],
)
def test_tritons_errors_have_the_apis_status(message: str, status: str | None, expected: tuple[int, Any]) -> None:
    error = of_triton(message, status)
    assert (error.status, error.param) == expected


@contextmanager
def nothing_behind() -> Iterator[TestClient]:
    """A door whose Triton has gone: its port is taken by nobody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        with TestClient(app.make_app(endpoint, {"m": Model(text_model(), Vocabulary())}), "http://localhost") as client:
            yield client


def test_a_triton_that_is_away_is_503_everywhere() -> None:
    with nothing_behind() as client:
        assert client.get("/health").status_code == 503
        for stream in (False, True):
            answer = client.post("/v1/completions", json=SAID | {"stream": stream})
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


def test_errors_of_the_routes_have_openais_form_and_that_of_tritons_frontend() -> None:
    with nothing_behind() as client:
        found = {
            422: [
                client.post("/v1/completions", content=b"{"),
                client.post("/v1/completions", content=b'{"model": "m", "prompt": "\\ud800"}'),
                client.post("/v1/completions", content=b'{"model": "m", "prompt": "x", "\\ud800": 1}'),
            ],
            404: [
                client.get("/v1/nothing"),
                client.post("/v1/completions", json=SAID | {"model": "x"}),
                client.get("/v1/models/x"),
            ],
            405: [client.get("/v1/completions")],
            400: [client.post("/v1/embeddings", json={})],
            413: [client.post("/v1/completions", content=b"x" * (MOST_BODY + 1))],
        }
        for status, answers in found.items():
            for answer in answers:
                assert answer.status_code == status
                assert {"message", "type"} <= answer.json()["error"].keys()
                assert answer.json()["detail"]


@pytest.mark.parametrize(("name", "value"), [("x-priority", "0"), ("x-timeout-ms", "-1"), ("x-tenant", "x" * 65)])
def test_a_header_that_says_nothing_good_is_named(name: str, value: str) -> None:
    with nothing_behind() as client:
        answer = client.post("/v1/completions", json=SAID, headers={name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_calls_of_another_page_are_refused() -> None:
    with nothing_behind() as client:
        unreadable = client.post("/v1/completions", json=SAID, headers={"origin": "http://["})
        assert unreadable.status_code == 403
        foreign = client.post("/v1/completions", json=SAID, headers={"origin": "http://elsewhere"})
        assert foreign.status_code == 403


# -- exchanges ---------------------------------------------------------------------------------------------------------


class Endless:
    """An answer that never ends, and knows what was taken of it."""

    tokens = 0

    def __init__(self) -> None:
        self.taken, self.closed = 0, threading.Event()

    async def chunks(self) -> AsyncGenerator[tuple[bytes, bool], None]:
        try:
            while True:
                self.taken += 1
                yield b"x" * 10_000, False
                await asyncio.sleep(0)
        finally:
            self.closed.set()


@contextmanager
def served(answer: Any, counters: DoorCounters, stalled: float) -> Iterator[socket.socket]:
    """A client's connection that has asked for that answer as a stream, of a real server."""

    async def route(request: Request) -> Exchange:
        return Exchange(answer, "m", True, counters, 60, stalled, time.monotonic(), {})

    config = uvicorn.Config(Starlette(routes=[Route("/", route)]), port=0, log_level="error", ws="none")
    with listening(config, limit_send_buffer(config.bind_socket())) as address, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(address)
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield client


def cancelled(counters: DoorCounters, why: str) -> float:
    return counters.registry.get_sample_value("labs_door_cancelled_total", {"why": why}) or 0.0


def test_a_client_that_takes_nothing_is_given_up_and_neither_door_nor_kernel_keeps_much_for_it() -> None:
    answer, counters = Endless(), DoorCounters()
    with served(answer, counters, stalled=0.3):
        assert answer.closed.wait(20)
        assert cancelled(counters, "slow") == 1
    # Sockets of loopback would hold 3 MB, and seem not to move while a slow client takes a third of them.
    assert answer.taken * 10_000 < 2**20


def test_a_client_that_takes_nothing_is_given_up_at_the_last_text_too() -> None:
    class Large:
        tokens = 0

        async def chunks(self) -> AsyncGenerator[tuple[bytes, bool], None]:
            yield b"x" * 2**22, False
            yield b"end", True

    counters = DoorCounters()
    with served(Large(), counters, stalled=0.3):
        eventually(lambda: cancelled(counters, "slow") == 1)


def test_a_client_that_leaves_cancels_its_request() -> None:
    answer, counters = Endless(), DoorCounters()
    with served(answer, counters, stalled=60) as client:
        client.recv(100)
        client.close()
        assert answer.closed.wait(20)
        assert cancelled(counters, "left") == 1


def test_choices_come_as_they_are_made_and_an_error_ends_all_of_them() -> None:
    closed = []

    async def source(
        index: int, count: int, fail: bool = False
    ) -> AsyncGenerator[tuple[int, str, tuple[()], None], None]:
        try:
            for number in range(count):
                yield index, str(number), (), None
                await asyncio.sleep(0)
            if fail:
                raise ApiError(400, "no")
        finally:
            closed.append(index)

    async def all_of(*sources: Any) -> list[Any]:
        return [part async for part in merge_sources(sources)]

    parts = asyncio.run(all_of(source(0, 3), source(1, 5)))
    assert {index: [text for i, text, *_ in parts if i == index] for index in (0, 1)} == {
        0: ["0", "1", "2"],
        1: ["0", "1", "2", "3", "4"],
    }
    closed.clear()
    with pytest.raises(ApiError):
        asyncio.run(all_of(source(0, 10**9), source(1, 2, fail=True)))
    assert sorted(closed) == [0, 1]
