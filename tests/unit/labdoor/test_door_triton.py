"""The door's calls of gRPC to a server that the test plays: what is cancelled, lost, slow or too long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest
from door_models import response, text_model
from tritonclient.grpc import service_pb2, service_pb2_grpc

from labdoor import requests
from labdoor.answers import Answer
from labdoor.errors import ApiError
from labdoor.models import Model, Vocabulary
from labdoor.triton import MOST_MESSAGE, WINDOW, RequestHeaders, Triton
from labkit.clients import stop

DEADLINE_S = 20.0
STREAMS = Model(replace(text_model(by_parameter=True), decoupled=True), Vocabulary())
WHOLE = Model(text_model(), Vocabulary())


class Played(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server whose streams never end but when they are cancelled.

    Attributes:
        size: bytes of each of its responses.
        sent: how many responses gRPC has taken from it.
        asked: requests that are being answered.
        said: the metadata of the last one.
    """

    def __init__(self, size: int = 1) -> None:
        self.size, self.sent, self.asked = size, 0, 0
        self.said: dict[str, Any] = {}

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelConfigResponse()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self.said = dict(context.invocation_metadata())
        self.asked += 1
        try:
            while True:
                yield response(out=b"x" * self.size)
                self.sent += 1
                await asyncio.sleep(0)
        finally:
            self.asked -= 1

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.asked += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.asked -= 1


@asynccontextmanager
async def serving(played: Played, address: str = "127.0.0.1:0") -> AsyncIterator[tuple[str, grpc.aio.Server]]:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", 2 * MOST_MESSAGE)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(played, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)


async def answer(triton: Triton, model: Model, headers: dict[str, str] | None = None) -> Answer:
    body = {"model": "m", "prompt": "Hello", "max_tokens": 2**30}
    asked = requests.parse_body(requests.CompletionRequest, json.dumps(body).encode())
    return await Answer.to(asked, model, triton, RequestHeaders("id", headers=headers or {}))


async def until(there: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not there():
            await asyncio.sleep(0.01)


def against(test: Callable[[Triton, Played, grpc.aio.Server], Awaitable[None]], size: int = 1) -> None:
    """Run a test between a channel and the server that it plays."""

    async def run() -> None:
        played = Played(size)
        async with serving(played) as (endpoint, server):
            triton = Triton(endpoint)
            try:
                async with asyncio.timeout(2 * DEADLINE_S):
                    await test(triton, played, server)
            finally:
                await triton.close()

    asyncio.run(run())


@pytest.mark.parametrize("model", [STREAMS, WHOLE])
def test_an_answer_that_is_given_up_is_cancelled_at_the_server(model: Model) -> None:
    async def leave(triton: Triton, played: Played, server: Any) -> None:
        task = asyncio.create_task((await answer(triton, model)).whole())
        await until(lambda: played.asked == 1)
        task.cancel()
        await until(lambda: played.asked == 0 and task.done())
        assert task.cancelled()

    against(leave)


def test_a_stream_that_is_closed_is_cancelled_at_the_server_and_its_trace_had_reached_it() -> None:
    async def leave(triton: Triton, played: Played, server: Any) -> None:
        chunks = (await answer(triton, STREAMS, {"traceparent": "00-1"})).chunks()
        await anext(chunks)
        await chunks.aclose()
        await until(lambda: played.asked == 0)
        assert played.said["traceparent"] == "00-1"

    against(leave)


def test_what_a_slow_client_does_not_take_stays_at_the_server() -> None:
    size = 4096

    async def slow(triton: Triton, played: Played, server: Any) -> None:
        chunks = (await answer(triton, STREAMS)).chunks()
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
        task = asyncio.create_task((await answer(triton, model)).whole())
        await until(lambda: played.asked == 1)
        await server.stop(None)
        with pytest.raises(ApiError) as caught:
            await task
        assert (caught.value.status, caught.value.code) == (503, "unavailable")

    against(kill)

    async def comes_back() -> None:
        async with serving(Played()) as (endpoint, _):
            triton = Triton(endpoint)
            await anext((await answer(triton, STREAMS)).chunks())
        with pytest.raises(ApiError, match="nothing listens at its address"):
            async with asyncio.timeout(DEADLINE_S):
                while True:  # the first may still be told that its connection was lost
                    try:
                        await (await answer(triton, STREAMS)).whole()
                    except ApiError as error:
                        if "nothing" in error.message:
                            raise
        async with serving(Played(), endpoint):
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    try:
                        assert await anext((await answer(triton, STREAMS)).chunks())
                        break
                    except ApiError:
                        await asyncio.sleep(0.05)
            await triton.close()

    asyncio.run(comes_back())


def test_a_message_beyond_the_limit_is_refused_and_not_kept() -> None:
    async def large(triton: Triton, played: Played, server: Any) -> None:
        with pytest.raises(ApiError) as caught:
            await (await answer(triton, STREAMS)).whole()
        assert caught.value.status == 500

    against(large, MOST_MESSAGE)


def test_no_proxy_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def asks(triton: Triton, played: Played, server: Any) -> None:
        assert await anext((await answer(triton, STREAMS)).chunks())

    against(asks)


def test_several_addresses_are_asked_in_turn_and_one_that_is_gone_is_not() -> None:
    async def run() -> None:
        one, other = Played(), Played()
        async with serving(one) as (first, _), serving(other) as (second, server):
            triton = Triton(f"ipv4:{first},{second}")
            async with asyncio.timeout(DEADLINE_S):
                open_ = []
                while not (one.asked and other.asked):
                    open_.append((await answer(triton, STREAMS)).chunks())
                    await anext(open_[-1])
                await server.stop(None)
                await until(lambda: not other.asked)
                for _ in range(4):
                    open_.append((await answer(triton, STREAMS)).chunks())
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
        triton.forget(replace(STREAMS, stopper="tensorrt_llm"), "77")
        await until(lambda: not triton._stopping)
        await until(lambda: played.asked == 0)

    against(leave)
