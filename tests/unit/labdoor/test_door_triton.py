"""The door's calls of gRPC to a server that the test plays: what is cancelled, lost, slow or too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from door_models import Played, playing, response, text_model, until
from waiting import DEADLINE_S

from labdoor import requests
from labdoor.answers import Answer
from labdoor.errors import ApiError
from labdoor.models import Model
from labdoor.triton import EMPTY_FINAL, MOST_MESSAGE, WINDOW, Triton
from labdoor.vocabulary import Vocabulary
from labkit.client import stop

STREAMS = Model(replace(text_model(by_parameter=True), decoupled=True), Vocabulary())
WHOLE = Model(replace(text_model(), decoupled=False), Vocabulary())


async def answer(triton: Triton, model: Model) -> Answer:
    """One that is never whole."""
    body = {"model": "m", "prompt": "Hello", "max_tokens": 2**30}
    asked = requests.parse_body(requests.CompletionRequest, json.dumps(body).encode())
    return await Answer.to(asked, model, triton, requests.read_headers({}))


async def read(answer: Answer) -> list[bytes]:
    return [part async for part in answer.whole()]


def against(test: Callable[[Triton, Played, grpc.aio.Server], Awaitable[None]], size: int = 1) -> None:
    """Run a test between a channel and the server that it plays."""

    async def run() -> None:
        played = Played(size)
        async with playing(played) as (endpoint, server):
            triton = Triton(endpoint)
            try:
                async with asyncio.timeout(2 * DEADLINE_S):
                    await test(triton, played, server)
            finally:
                await triton.close()

    asyncio.run(run())


def test_what_a_slow_client_does_not_take_stays_at_the_server() -> None:
    size = 4096

    async def slow(triton: Triton, played: Played, server: Any) -> None:
        chunks = (await answer(triton, STREAMS)).events()
        await anext(chunks)
        await until(lambda: played.sent > 0)
        before = 0
        while before < played.sent:  # until the server may send no more
            before = played.sent
            await asyncio.sleep(0.2)
        assert 0 < played.sent * size < 16 * WINDOW
        await chunks.aclose()

    against(slow, size)


@pytest.mark.parametrize("model", [STREAMS, WHOLE])
def test_a_server_that_is_killed_is_503_and_a_later_one_at_its_address_is_found(model: Model) -> None:
    async def kill(triton: Triton, played: Played, server: Any) -> None:
        task = asyncio.create_task(read(await answer(triton, model)))
        await until(lambda: played.asked == 1)
        await server.stop(None)
        with pytest.raises(ApiError) as caught:
            await task
        assert (caught.value.status, caught.value.code) == (503, "unavailable")

    against(kill)

    async def comes_back() -> None:
        async with playing(Played()) as (endpoint, _):
            triton = Triton(endpoint)
            await anext((await answer(triton, STREAMS)).events())
        with pytest.raises(ApiError, match="nothing listens at its address"):
            async with asyncio.timeout(DEADLINE_S):
                while True:  # the first may still be told that its connection was lost
                    try:
                        await read(await answer(triton, STREAMS))
                    except ApiError as error:
                        if "nothing" in error.message:
                            raise
        async with playing(Played(), endpoint):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    try:
                        assert await anext((await answer(triton, STREAMS)).events())
                        break
                    except ApiError:
                        await asyncio.sleep(0.05)
            await triton.close()

    asyncio.run(comes_back())


def test_a_message_beyond_the_limit_is_refused_and_not_kept() -> None:
    async def large(triton: Triton, played: Played, server: Any) -> None:
        with pytest.raises(ApiError) as caught:
            await read(await answer(triton, STREAMS))
        assert caught.value.status == 500

    against(large, MOST_MESSAGE)


def test_no_proxy_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def asks(triton: Triton, played: Played, server: Any) -> None:
        assert await anext((await answer(triton, STREAMS)).events())

    against(asks)


def test_several_addresses_are_asked_in_turn_and_one_that_is_gone_is_not() -> None:
    async def run() -> None:
        one, other = Played(), Played()
        async with playing(one) as (first, _), playing(other) as (second, server):
            triton = Triton(f"ipv4:{first},{second}")
            async with asyncio.timeout(DEADLINE_S):
                open_ = []
                while not (one.asked and other.asked):
                    open_.append((await answer(triton, STREAMS)).events())
                    await anext(open_[-1])
                await server.stop(None)
                await until(lambda: not other.asked)
                for _ in range(4):
                    open_.append((await answer(triton, STREAMS)).events())
                    await anext(open_[-1])
            for chunks in open_:
                try:
                    await chunks.aclose()
                except ApiError:
                    continue
            await triton.close()

    asyncio.run(run())


def test_a_stop_that_is_not_answered_ends_with_its_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is one of the few that the door has for such work."""
    monkeypatch.setattr(stop, "WAIT_S", 0.0)

    async def leave(triton: Triton, played: Played, server: Any) -> None:
        triton._stop("tensorrt_llm", "77")
        await until(lambda: not triton._stopping)
        await until(lambda: played.asked == 0)

    against(leave)


def test_a_stream_that_ends_before_its_final_response_was_cut_and_did_not_stop() -> None:
    class Ended(Played):
        async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
            async for request in requests:
                assert request.parameters[EMPTY_FINAL].bool_param
                break
            yield response(out=b"half")

    async def run() -> None:
        async with playing(Ended()) as (endpoint, _):
            triton = Triton(endpoint)
            try:
                with pytest.raises(ApiError) as caught:
                    await read(await answer(triton, STREAMS))
            finally:
                await triton.close()
        assert caught.value.status == 503

    asyncio.run(run())
