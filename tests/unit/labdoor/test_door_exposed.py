"""The door where other machines reach it: Envoy before it, which asks for the token and bounds what strangers hold."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import http.client
import json
import re
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
import uvicorn
from certificates import authority, pair
from door_models import text_model
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import eventually

from labctl.runtimes.envoy import config, door
from labctl.runtimes.envoy.config import Address
from labctl.stack.ports import free_ports
from labdoor import app
from labdoor.__main__ import uvicorn_config
from labdoor.exchange import MOST_BODY, limit_send_buffer
from labdoor.models import Model, Vocabulary

TOKEN = "a-token-of-some-length"
MODELS = {"m": Model(text_model(), Vocabulary())}
PATIENCE_S = 60.0
SOON_S = 9.0  # far more than an answer takes, and less than any deadline that Envoy gives a stranger
HELD = 600
Pieces = dict[str, Any]


class Noted:
    """In Triton's place: what was asked of it."""

    calls: ClassVar[list[str]] = []

    def __init__(self, endpoint: str) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        raise ConnectionError

    async def ready(self, models: object) -> bool:
        self.calls.append("ready")
        return True

    async def close(self) -> None:
        pass


class Exposed:
    """A door with Envoy before it. Each ``client`` is an address of its own, where it is not told otherwise."""

    def __init__(self, port: int, stop: Callable[[], None], context: ssl.SSLContext | None = None) -> None:
        self.port, self.end_the_door, self._context, self._clients = port, stop, context, 0

    def connect(self, client: int = 0) -> socket.socket:
        if not client:
            self._clients += 1
            client = 1000 + self._clients
        own = f"127.1.{client // 256}.{client % 256}"
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S, source_address=(own, 0))

    def ask(
        self, method: str = "GET", path: str = "/v1/models", body: Any = None, client: int = 0, **headers: Any
    ) -> tuple[int, dict[str, str], Any]:
        """One request on a connection of its own: the status, the headers, and what the JSON says."""
        connection = http.client.HTTPConnection("machine.example", timeout=PATIENCE_S)
        connection.sock = self.connect(client)
        if self._context:
            connection.sock = self._context.wrap_socket(connection.sock, server_hostname="localhost")
        with contextlib.closing(connection):
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, {name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            said = json.loads(text) if is_json else text.decode()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, said


MINE: dict[str, Any] = {"authorization": f"Bearer {TOKEN}"}


@contextlib.contextmanager
def exposed(
    folder: Path, change: Callable[[Pieces], None] = lambda pieces: None, tls: tuple[str, str] | None = None
) -> Iterator[Exposed]:
    """A door whose Triton notes what it is asked, on a socket without a file, and a real Envoy before it."""
    pieces = copy.deepcopy(dict(config._pieces()))
    change(pieces["openai"])
    (token := folder / "token").write_text(f"{TOKEN}\n")
    name, (port,) = f"labs-test-{secrets.token_hex(8)}", free_ports("127.0.0.1", 1)
    behind = socket.socket(socket.AF_UNIX)
    behind.bind(f"\0{name}")
    behind.listen(512)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labdoor.app.Triton", Noted)
        patch.setattr(config, "_pieces", lambda: pieces)
        server = uvicorn.Server(uvicorn_config(app.make_app("nowhere:1", MODELS, fronted=True), "", 0, fronted=True))
        thread = threading.Thread(target=server.run, args=([limit_send_buffer(behind)],))
        thread.start()
        envoy = door.start_envoy(Address("127.0.0.1", port), f"@{name}", tls, token)

        def stop() -> None:
            server.should_exit = server.force_exit = True
            thread.join(20)
            behind.close()

        try:
            eventually(lambda: server.started)
            context = ssl.create_default_context(cafile=str(folder / "ca.pem")) if tls else None
            yield Exposed(port, stop, context)
        finally:
            envoy.kill()
            envoy.wait()
            stop()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposed]:
    with exposed(tmp_path_factory.mktemp("exposed")) as found:
        yield found


# -- the token ---------------------------------------------------------------------------------------------------------

ROUTES = [
    ("GET", "/v1/models"),
    ("GET", "/v1/models/m"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/embeddings"),
    ("GET", "/metrics"),
    ("GET", "/v1/nothing"),
    ("GET", "/health/x"),
    ("GET", "/health;x"),
]
NOT_THE_TOKEN = st.one_of(
    st.none(),
    st.sampled_from(["", "Bearer", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=40).map("Bearer {}".format),
)


@given(route=st.sampled_from(ROUTES), said=NOT_THE_TOKEN)
@settings(max_examples=40)
def test_without_the_token_each_path_is_401_and_nothing_reaches_triton(
    here: Exposed, route: tuple[str, str], said: str | None
) -> None:
    Noted.calls.clear()
    headers: dict[str, Any] = {} if said is None else {"authorization": said}
    status, found, answer = here.ask(*route, body={"model": "m", "prompt": "x"}, **headers)
    assert (status, found["www-authenticate"]) == (401, "Bearer")
    assert answer["error"]["code"] == "invalid_api_key" and TOKEN not in json.dumps(answer)
    assert Noted.calls == []


def test_with_the_token_the_routes_answer_and_no_other_path_does(here: Exposed) -> None:
    assert here.ask(**MINE)[2]["data"][0]["id"] == "m"
    for scheme in ("bearer", "BEARER ", "beaRer  "):
        assert here.ask(path="/metrics", authorization=f"{scheme} {TOKEN}")[0] == 200
    for path in ("/v2/health/live", "/docs", "/v1/files", "/.env"):
        assert here.ask(path=path, **MINE)[0] == 404
    Noted.calls.clear()
    here.ask("POST", "/v1/completions", {"model": "m", "prompt": "x"}, **MINE)
    assert Noted.calls != []


def test_health_needs_no_token_and_what_a_request_says_of_itself_arrives(here: Exposed) -> None:
    Noted.calls.clear()
    assert here.ask(path="/health")[0] not in (401, 429)
    assert Noted.calls == ["ready"]
    status, _, answer = here.ask("POST", "/v1/completions", {"model": "m", "prompt": "x"}, x_priority="0", **MINE)
    assert (status, answer["error"]["param"]) == (400, "x-priority")


def test_an_internal_error_takes_no_other_request_with_it(here: Exposed) -> None:
    for _ in range(100):  # a connection that Envoy used again, and the door then closed, gave 503 once in 25
        assert here.ask("POST", "/v1/completions", {"model": "m", "prompt": "x"}, **MINE)[0] == 500
        assert here.ask(path="/health")[0] == 200


def test_with_a_certificate_it_speaks_tls_alone(tmp_path: Path) -> None:
    authority(tmp_path)
    made = pair(tmp_path)
    with exposed(tmp_path, tls=(str(made.certificate), str(made.key))) as secure:
        assert secure.ask()[0] == 401
        assert secure.ask(**MINE)[0] == 200
        status, headers, _ = secure.ask(path="/v1/models/", **MINE)
        assert status == 307 and headers["location"].startswith("https://")
        with secure.connect() as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not taken(plain).startswith(b"HTTP/")


# -- limits ------------------------------------------------------------------------------------------------------------


def slow_paces(address: int, token: int) -> Callable[[Pieces], None]:
    """So many requests at once, and no more for the time of a test."""

    def change(piece: Pieces) -> None:
        bucket = {"tokens_per_fill": 1, "fill_interval": "3600s"}
        piece["paces"]["address"]["descriptors"][0]["token_bucket"] = {**bucket, "max_tokens": address}
        piece["paces"]["token"]["token_bucket"] = {**bucket, "max_tokens": token}

    return change


def test_an_address_and_all_that_have_the_token_have_a_pace_that_strangers_do_not_use_up(tmp_path: Path) -> None:
    with exposed(tmp_path, slow_paces(address=5, token=8)) as door:
        assert [door.ask(client=1)[0] for _ in range(7)] == [401] * 5 + [429] * 2
        assert [door.ask(client=2, path="/health")[0] for _ in range(6)][5] == 429
        assert [door.ask(client=client, **MINE)[0] for client in (3, 4, 5) for _ in range(3)] == [200] * 8 + [429]
        status, headers, answer = door.ask(**MINE)
        assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(headers["retry-after"]) >= 1
        assert door.ask(path="/health")[0] != 429, "a probe has no token"


def test_a_request_too_many_is_told_so_in_openais_form(tmp_path: Path) -> None:
    def change(piece: Pieces) -> None:
        piece["cluster"]["circuit_breakers"] = {"thresholds": [{"max_requests": 0}]}

    with exposed(tmp_path, change) as door:
        status, _, answer = door.ask(**MINE)
        assert (status, answer["error"]["type"], answer["error"]["code"]) == (
            429,
            "rate_limit_error",
            "too_many_requests",
        )


def taken(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(2**16):
            answer += part
    return answer


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
MINE_HEAD, STRANGERS = HEAD % TOKEN.encode(), HEAD % b"wrong"
MALFORMED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
    "a head that is too long": (MINE_HEAD + b"X: " + b"x" * 2**17 + b"\r\n\r\n", 431),
    "a hundred headers": (MINE_HEAD + b"".join(b"X%d: x\r\n" % n for n in range(200)) + b"\r\n", 431),
    "two lengths": (MINE_HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxx", 400),
    "a chunk that is none": (MINE_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
    "a body that is too long": (
        MINE_HEAD + b"Content-Length: %d\r\n\r\n" % (MOST_BODY + 1) + bytes(MOST_BODY + 1),
        413,
    ),
    "an upgrade": (b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
    "a stranger's body": (STRANGERS + b"Content-Length: 10000000\r\n\r\nx", 401),
    "a stranger's endless body": (STRANGERS + b"Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", 401),
}


@pytest.mark.parametrize(("request_", "status"), MALFORMED.values(), ids=MALFORMED)
def test_what_envoy_itself_refuses_has_openais_form(here: Exposed, request_: bytes, status: int) -> None:
    with here.connect() as client:
        with contextlib.suppress(ConnectionError):  # it has answered, and takes no more
            client.sendall(request_)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == status
        assert_openais(json.loads(answer.read()), status)


def assert_openais(answer: Any, status: int) -> None:
    error = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and answer["detail"] == error["message"]
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")


def test_a_door_that_has_ended_is_503_in_openais_form(tmp_path: Path) -> None:
    with exposed(tmp_path) as ending:
        ending.end_the_door()
        status, _, answer = ending.ask(**MINE)
        assert (status, answer["error"]["code"]) == (503, "unavailable")
        assert "labctl status" in answer["error"]["message"]
        assert_openais(answer, 503)


# -- connections that are held -----------------------------------------------------------------------------------------

BODY = json.dumps({"model": "m", "prompt": "x" * 200}).encode()
WHOLE = {
    "mine": MINE_HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "a stranger's": STRANGERS + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "in chunks": MINE_HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
}
#: The beginning of a request: nothing of it, a part of its head, or its head and a part of its body.
BEGUN = st.sampled_from([*WHOLE.values()]).flatmap(lambda one: st.integers(0, len(one) - 8).map(lambda cut: one[:cut]))


@given(begun=st.lists(BEGUN, min_size=1, max_size=8))
@settings(max_examples=5)
def test_a_good_client_is_answered_while_hundreds_hold_connections_and_say_nothing_or_half_a_request(
    here: Exposed, begun: list[bytes]
) -> None:
    strangers = [b"", *(part.replace(TOKEN.encode(), b"wrong") for part in begun)]
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(here.connect()) for _ in range(HELD)]
        for number, connection in enumerate(held):  # those that have the token have a pace, together
            connection.sendall(begun[number] if number < len(begun) else strangers[number % len(strangers)])
        for _ in range(5):
            began = time.monotonic()
            assert here.ask(**MINE)[0] == 200
            assert time.monotonic() - began < SOON_S


def impatient(piece: Pieces) -> None:
    piece["manager"] |= {"request_headers_timeout": "0.5s", "request_timeout": "0.5s"}
    piece["manager"]["common_http_protocol_options"]["idle_timeout"] = "0.5s"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposed]:
    with exposed(tmp_path_factory.mktemp("hasty"), impatient) as found:
        yield found


@given(begun=st.lists(BEGUN, min_size=20, max_size=40))
@settings(max_examples=5)
def test_every_connection_has_a_deadline_wherever_its_request_stops(hasty: Exposed, begun: list[bytes]) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(hasty.connect()) for _ in begun]
        for connection, part in zip(held, begun, strict=True):
            connection.sendall(part)
        for connection in held:
            answer = taken(connection)  # until it is closed
            assert re.match(rb"HTTP/1.1 (408|401) |$", answer), answer


def test_an_answer_that_takes_long_is_waited_for(hasty: Exposed, monkeypatch: pytest.MonkeyPatch) -> None:
    async def slow(self: Noted, models: Any) -> bool:
        await asyncio.sleep(1.5)
        return True

    monkeypatch.setattr(Noted, "ready", slow, raising=False)
    assert hasty.ask(path="/health")[0] == 200


# -- the program -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def program(folder: Path, token: str = TOKEN) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The door's program, exposed, before a Triton that is not there yet."""
    (file := folder / "token").write_text(token)
    (port,) = free_ports("127.0.0.1", 1)
    words = ["--host", "127.0.0.1", "--port", str(port), "--token-file", str(file), "--wait", "600"]
    words += ["--endpoint", "127.0.0.1:1", "--models", "m"]
    argv = [sys.executable, "-m", "labctl.runtimes.envoy.door", *words]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        yield process, port
    finally:
        process.kill()
        process.communicate()


def front_of(process: subprocess.Popen[bytes]) -> psutil.Process | None:
    children = psutil.Process(process.pid).children()
    return next((child for child in children if child.name() == "envoy"), None)


def is_open(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S):
        return True
    return False


@pytest.mark.parametrize("killed", ["envoy", "door"])
def test_neither_envoy_nor_the_door_outlives_the_other(tmp_path: Path, killed: str) -> None:
    with program(tmp_path) as (process, port):
        eventually(lambda: is_open(port))
        eventually(lambda: psutil.Process(process.pid).name() == "labs-door")
        envoy = front_of(process)
        assert envoy and TOKEN not in " ".join([*envoy.cmdline(), *envoy.environ().values()])
        assert Exposed(port, lambda: None).ask(**MINE)[0] == 503, "Triton is not there yet"
        (envoy if killed == "envoy" else process).kill()
        assert process.wait(20) == (1 if killed == "envoy" else -9)
        eventually(lambda: not is_open(port))


@pytest.mark.parametrize("token", ["", "short", "two lines of\ntext, and more", 'quote"quote"quote"quote'])
def test_without_a_good_token_it_does_not_start_and_does_not_show_what_it_was_given(tmp_path: Path, token: str) -> None:
    with program(tmp_path, token) as (process, port):
        assert process.wait(20) == 1
        said = process.stdout.read().decode() if process.stdout else ""
        assert "holds no token" in said and not (token and token in said)
        assert not is_open(port)
