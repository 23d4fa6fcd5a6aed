"""The door on the wire: OpenAI's own client, clients that leave or take nothing, deadlines, and what is refused."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from door_models import Played, Scripted, door_before, playing, response, text_model, until
from starlette.testclient import TestClient

from labdoor import app
from labdoor.errors import of_triton
from labdoor.models import Model
from labdoor.requests import MOST_BODY
from labdoor.vocabulary import Vocabulary

SAID: dict[str, Any] = {"model": "m", "prompt": "Hello"}
STREAMS = Model(replace(text_model(by_parameter=True), decoupled=True), Vocabulary())
WHOLE = Model(replace(text_model(), decoupled=False), Vocabulary())


# -- OpenAI's own client -----------------------------------------------------------------------------------------------


def test_openais_own_client_reads_answers_streams_models_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    script = [response(out=" near"), response(True, out=" the river")]
    monkeypatch.setattr("labdoor.app.Triton", lambda endpoint: Scripted(script))
    turns: Any = [{"role": "user", "content": "Where?"}]

    async def ask() -> None:
        async with door_before("nowhere:1", STREAMS) as door:
            client = openai.AsyncOpenAI(base_url=f"{door.base_url}/v1", api_key="none", max_retries=0)
            text = await client.completions.create(**SAID)
            assert text.choices[0].text == " near the river"
            chat = await client.chat.completions.create(model="m", messages=turns, n=2)
            assert [choice.message.content for choice in chat.choices] == [" near the river"] * 2
            streamed = await client.completions.create(**SAID, stream=True)
            assert "".join([chunk.choices[0].text async for chunk in streamed]) == " near the river"
            talked = await client.chat.completions.create(model="m", messages=turns, stream=True)
            said = [chunk.choices[0] async for chunk in talked]
            assert "".join(one.delta.content or "" for one in said) == " near the river"
            assert (said[0].delta.role, said[-1].finish_reason) == ("assistant", "stop")
            assert [model.id async for model in client.models.list()] == ["m"]
            assert (await client.models.retrieve("m")).id == "m"
            with pytest.raises(openai.BadRequestError) as unable:
                await client.completions.create(**SAID, logit_bias={"0": 1})
            assert (unable.value.param, unable.value.code) == ("logit_bias", "unsupported_parameter")
            with pytest.raises(openai.NotFoundError, match="there is: m"):
                await client.completions.create(model="x", prompt="x")
            await client.close()

    asyncio.run(ask())


# -- clients that leave or take nothing, and deadlines -----------------------------------------------------------------


async def metric(door: httpx.AsyncClient, name: str) -> float:
    """A counter of the door's own page, by its name and labels."""
    lines = (await door.get("/metrics")).text.splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)


@asynccontextmanager
async def asked(door: httpx.AsyncClient, n: int = 1, **headers: str) -> AsyncIterator[socket.socket]:
    """A connection of a client that has asked for a stream of so many choices, and has read nothing of it."""
    body = json.dumps(SAID | {"stream": True, "n": n}).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{lines}Content-Length: {len(body)}\r\n\r\n"
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", door.base_url.port))
        await asyncio.get_running_loop().sock_sendall(client, head.encode() + body)
        yield client


def against(model: Model, test: Callable[[httpx.AsyncClient, Played], Awaitable[None]], size: int = 1) -> None:
    """Run a test between a client of a door that listens and the server behind it."""

    async def run() -> None:
        played = Played(size)
        async with playing(played) as (endpoint, _), door_before(endpoint, model) as door, asyncio.timeout(60):
            await test(door, played)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("model", "n"), [(STREAMS, 1), (STREAMS, 3), (WHOLE, 1), (WHOLE, 3)], ids=["stream", "streams", "whole", "wholes"]
)
def test_a_client_that_leaves_cancels_its_requests_whose_trace_had_reached_the_server(model: Model, n: int) -> None:
    async def leave(door: httpx.AsyncClient, played: Played) -> None:
        async with asked(door, n, traceparent="00-1"):
            await until(lambda: played.asked == n)
            assert played.said["traceparent"] == "00-1"
            assert await metric(door, "labs_door_running") == 1
        await until(lambda: played.asked == 0)
        while await metric(door, "labs_door_running"):
            continue
        assert await metric(door, 'labs_door_requests_total{code="499",model="m"}') == 1

    against(model, leave)


def test_a_client_that_leaves_ends_its_request_inside_an_ensemble_by_its_own_id() -> None:
    async def leave(door: httpx.AsyncClient, played: Played) -> None:
        async with asked(door, x_request_id="77"):
            await until(lambda: played.asked == 1)
        await until(lambda: played.stopped)
        (id,) = played.stopped
        assert id.endswith(":77") and id != "77:77"

    against(replace(STREAMS, stopper="tensorrt_llm"), leave)


@pytest.mark.parametrize("model", [STREAMS, WHOLE], ids=["streams", "whole"])
def test_a_deadline_ends_an_answer_also_of_a_client_that_takes_nothing(model: Model) -> None:
    async def late(door: httpx.AsyncClient, played: Played) -> None:
        async with asked(door, x_timeout_ms="300"):
            await until(lambda: played.asked == 1)
            await until(lambda: played.asked == 0)
        answer = await door.post("/v1/completions", json=SAID, headers={"x-timeout-ms": "100", "x-request-id": "mine"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "deadline_exceeded")
        assert answer.headers["x-request-id"] == "mine"

    against(model, late, size=10_000)


def test_an_error_after_the_first_text_is_an_event_and_nothing_is_said_to_be_done() -> None:
    async def late(door: httpx.AsyncClient, played: Played) -> None:
        body = SAID | {"stream": True}
        answer = await door.post("/v1/completions", json=body, headers={"x-timeout-ms": "300"})
        assert answer.status_code == 200
        *_, last, rest = answer.text.split("\n\n")
        assert rest == ""
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "deadline_exceeded"

    against(STREAMS, late)


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
def nothing_behind(**models: Model) -> Iterator[TestClient]:
    """A door whose Triton has gone: its port is taken by nobody."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
        with TestClient(app.make_app(endpoint, models or {"m": STREAMS}), "http://localhost") as client:
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
            413: [
                client.post("/v1/completions", content=b"x" * (MOST_BODY + 1)),
                client.post("/v1/completions", content=(b"x" * 2**20 for _ in range(MOST_BODY // 2**20 + 1))),
            ],
        }
        for status, answers in found.items():
            for answer in answers:
                assert answer.status_code == status
                assert {"message", "type"} <= answer.json()["error"].keys()
                assert answer.json()["detail"]


def test_an_error_that_nobody_foresaw_says_nothing_of_the_inside_and_closes_its_connection() -> None:
    class Broken:
        def ready(self, models: Any) -> Any:
            raise RuntimeError("in /somewhere/app.py")

        async def close(self) -> None:
            return

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labdoor.app.Triton", lambda endpoint: Broken())
        made = app.make_app("nowhere:1", {"m": STREAMS})
        with TestClient(made, "http://localhost", raise_server_exceptions=False) as client:
            answer = client.get("/health")
    assert (answer.status_code, answer.headers["connection"]) == (500, "close")
    assert "somewhere" not in answer.text


@pytest.mark.parametrize(
    ("name", "value"), [("x-priority", "0"), ("x-timeout-ms", "-1"), ("x-timeout-ms", "600001"), ("x-tenant", "x" * 65)]
)
def test_a_header_that_says_nothing_good_is_named(name: str, value: str) -> None:
    with nothing_behind() as client:
        answer = client.post("/v1/completions", json=SAID, headers={name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_calls_of_another_page_are_refused() -> None:
    with nothing_behind() as client:
        for origin in ("http://[", "http://elsewhere", "null"):
            foreign = client.post("/v1/completions", json=SAID, headers={"origin": origin})
            assert foreign.status_code == 403


def test_a_prompt_longer_than_the_context_is_refused_and_a_chat_gets_what_the_context_leaves() -> None:
    words = replace(Vocabulary(), context=3)

    async def count(text: str, special: bool = True) -> int:
        return len(text)

    object.__setattr__(words, "count", count)
    with nothing_behind(m=replace(STREAMS, words=words)) as client:
        answer = client.post("/v1/completions", json={"model": "m", "prompt": "abc"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
