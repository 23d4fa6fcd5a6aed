"""What stands before a door that other machines reach: the token, and the limits on requests; and uvicorn's own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from lab_errors import lab_error
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient
from starlette.types import ASGIApp
from waiting import eventually

from labdoor import app, exchange, gate
from labdoor.__main__ import MOST_HEAD, configured
from labdoor.models import Model, Vocabulary
from labkit.clients.text_model import TextModel

TOKEN = "a-token-of-some-length"
MINE = {"authorization": f"Bearer {TOKEN}"}
ASKED = {"model": "m", "prompt": "Hello"}
MODELS = {"m": Model(TextModel("m", {}, "text", "", "out", True), Vocabulary())}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of Triton."""
    calls: list[str] = []

    class Noted:
        def __init__(self, endpoint: str) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            raise ConnectionError

        async def close(self) -> None:
            pass

    monkeypatch.setattr("labdoor.app.Triton", Noted)
    return calls


@pytest.fixture
def client(asked: list[str]) -> Iterator[TestClient]:
    """A client of an exposed door."""
    with TestClient(app.make("nowhere:1", MODELS, token=TOKEN), raise_server_exceptions=False) as client:
        yield client


ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/metrics"),
    ("GET", "/v1/nothing"),
    ("GET", "//health"),
]


@pytest.mark.parametrize("said", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN])
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_without_the_token_each_path_is_401_and_nothing_reaches_triton(
    client: TestClient, asked: list[str], method: str, path: str, said: str | None
) -> None:
    answer = client.request(method, path, json=ASKED, headers={} if said is None else {"authorization": said})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.json()["detail"] == answer.json()["error"]["message"]
    assert TOKEN not in answer.text
    assert asked == []


def test_with_the_token_the_routes_answer_and_no_other_path_does(client: TestClient, asked: list[str]) -> None:
    assert client.get("/v1/models", headers=MINE).json()["data"][0]["id"] == "m"
    assert client.get("/v1/models", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
    assert client.get("/metrics", headers=MINE).status_code == 200
    for path in ("/v2/health/live", "/docs", "/v1/files", "/.env"):
        assert client.get(path, headers=MINE).status_code == 404
    client.post("/v1/completions", json=ASKED, headers=MINE)
    assert asked != []


def test_health_needs_no_token_and_any_name_of_the_machine_will_do(client: TestClient, asked: list[str]) -> None:
    client.get("/health", headers={"host": "machine.example"})
    assert asked == ["ready"]


def test_the_page_of_counters_says_how_many_were_refused(client: TestClient) -> None:
    client.get("/v1/models")
    assert 'labs_door_refused_total{code="invalid_api_key"} 1.0' in client.get("/metrics", headers=MINE).text


@pytest.mark.parametrize(("path", "headers"), [("/v1/models", {}), ("/health", {}), ("/v1/models", MINE)])
def test_an_address_that_is_too_fast_gets_429_and_when_to_come_again(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, path: str, headers: dict[str, str]
) -> None:
    monkeypatch.setattr(gate, "PEER", (0.01, 3))
    with TestClient(app.make("nowhere:1", MODELS, token=TOKEN), raise_server_exceptions=False) as client:
        before = [client.get(path, headers=headers).status_code for _ in range(3)]
        answer = client.get(path, headers=headers)
    assert 429 not in before
    assert answer.status_code == 429
    assert 90 < int(answer.headers["retry-after"]) <= 100
    assert answer.json()["error"]["type"] == "rate_limit_error"


def test_all_addresses_together_have_a_limit_that_wrong_tokens_do_not_use_up(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "TOKEN", (0.01, 2))
    with TestClient(app.make("nowhere:1", MODELS, token=TOKEN), raise_server_exceptions=False) as client:
        assert [client.get("/v1/models").status_code for _ in range(5)] == [401] * 5
        assert [client.get("/v1/models", headers=MINE).status_code for _ in range(3)] == [200, 200, 429]


def test_a_pace_refills_with_time_up_to_its_burst_and_keeps_addresses_apart() -> None:
    pace = gate.Pace(rate=2, burst=3)
    assert [pace.wait("a", 0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert pace.wait("b", 0) == 0
    assert pace.wait("a", 0.5) == 0
    assert pace.wait("a", 0.5) == 0.5
    assert [pace.wait("a", 1_000) for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_pace_forgets_the_addresses_that_it_has_not_seen_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_PEERS", 2)
    pace = gate.Pace(rate=0.001, burst=1)
    assert [pace.wait(key, 0) for key in ("a", "b")] == [0, 0]
    assert pace.wait("a", 0) > 0
    assert pace.wait("c", 0) == 0
    assert pace.wait("a", 0) > 0, "b went"
    assert pace.wait("b", 0) == 0


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_of_ipv6_counts_with_its_network(host: str, key: str) -> None:
    assert gate.peer({"type": "http", "client": (host, 1)}) == key


def test_a_token_is_read_from_its_file_and_a_bad_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    assert gate.read_token(path) == TOKEN
    for text, code in (("", "token-too-short"), ("short", "token-too-short"), ("\N{SNOWMAN}" * 20, "token-unreadable")):
        path.write_text(text)
        with lab_error(code) as caught:
            gate.read_token(path)
        assert "short" not in caught.value.why
    with lab_error("token-unreadable"):
        gate.read_token(tmp_path / "none")


# -- connections -------------------------------------------------------------------------------------------------------


@contextmanager
def listening(made: ASGIApp | None = None, exposed: bool = True) -> Iterator[tuple[str, int]]:
    """Where an exposed door listens, or another application with the same settings."""
    made = made or app.make("127.0.0.1:1", MODELS, token=TOKEN)
    server = uvicorn.Server(configured(made, "127.0.0.1", 0, exposed))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n" % TOKEN.encode()


def taken(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    answer = b""
    while part := client.recv(2**16):
        answer += part
    return answer


def test_a_body_that_does_not_come_in_time_is_refused_and_its_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "BODY_S", 0.3)
    with listening() as where, socket.create_connection(where, timeout=60) as client:
        client.sendall(HEAD + b"Content-Length: 1000\r\n\r\nx")
        assert taken(client).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(("token", "status"), [(b"wrong", b"401"), (TOKEN.encode(), b"413")])
def test_a_client_that_is_refused_before_its_body_is_read_is_told_so_and_may_ask_again(
    token: bytes, status: bytes
) -> None:
    size = exchange.MOST_BODY + 2**20
    request = HEAD.replace(TOKEN.encode(), token) + b"Content-Length: %d\r\n\r\n" % size + bytes(size)
    with listening() as where, socket.create_connection(where, timeout=60) as client:
        for _ in range(2):
            client.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += client.recv(2**16)
            assert answer[9:12] == status


def test_a_stranger_whose_body_has_no_length_is_disconnected() -> None:
    head = HEAD.replace(TOKEN.encode(), b"wrong") + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"
    with listening() as where, socket.create_connection(where, timeout=60) as client:
        client.sendall(head)
        assert taken(client).startswith(b"HTTP/1.1 401")


def test_a_client_that_only_waits_for_its_answer_is_not_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labdoor.__main__.KEEP_ALIVE_S", 0.1)

    async def slow(request: Request) -> Response:
        await request.body()
        await asyncio.sleep(0.5)
        return Response("late")

    application = Starlette(routes=[Route("/", slow, methods=["POST"])])
    with listening(application) as where, socket.create_connection(where, timeout=60) as client:
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        assert taken(client).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("exposed", [True, False])
@pytest.mark.parametrize(
    "begun", [b"GET /", b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "]
)
def test_a_head_without_end_is_cut(exposed: bool, begun: bytes) -> None:
    sent = 0
    with listening(exposed=exposed) as where, socket.create_connection(where, timeout=30) as client:
        with contextlib.suppress(OSError):
            client.sendall(begun)
            for _ in range(1000):
                client.sendall(b"x" * 2**10)
                sent += 2**10
                client.settimeout(0.01)
                with contextlib.suppress(TimeoutError):
                    while client.recv(2**16):
                        continue
                    break
        assert sent < 50 * MOST_HEAD


def test_a_long_body_in_small_parts_is_no_long_head() -> None:
    async def length(request: Request) -> Response:
        return Response(str(len(await request.body())))

    application = Starlette(routes=[Route("/", length, methods=["POST"])])
    size = 20 * MOST_HEAD
    with listening(application) as where, socket.create_connection(where, timeout=60) as client:
        for _ in range(2):  # on one connection
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(20):
                client.sendall(b"x" * MOST_HEAD)
            answer = b""
            while not answer.endswith(str(size).encode()):
                answer += client.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200 OK")


def test_beyond_a_number_of_connections_a_request_is_told_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labdoor.__main__.MOST_CONNECTIONS", 3)
    with listening() as where, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(where, timeout=60)) for _ in range(3)]
        clients[-1].sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert taken(clients[-1]).startswith(b"HTTP/1.1 503")
        clients[0].sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
        assert clients[0].recv(12) == b"HTTP/1.1 401"
