"""The door's calls of gRPC that are given up or lost, and the addresses that it asks in turn."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace

import pytest
from grpc import StatusCode
from grpc_calls import asks, channel_to, connected, failure, taken
from h2.settings import SettingCodes
from h2_peer import WELL, Server, played, prefixed

from labdoor.channel import AGAIN_S
from labdoor.http2 import RESET

MOST = SettingCodes.MAX_CONCURRENT_STREAMS
CANCELLED, UNAVAILABLE = StatusCode.CANCELLED, StatusCode.UNAVAILABLE


# -- given up ----------------------------------------------------------------------------------------------------------


@played
async def test_a_call_that_is_given_up_ends_here_and_at_the_server_and_another_takes_its_place() -> None:
    async with connected() as (channel, peer, server):
        await peer.settle(MOST, 1)
        call = asks(channel)
        failing, waiting = asyncio.create_task(failure(call)), asyncio.create_task(taken(asks(channel)))
        await peer.request(1)
        call.cancel()
        call.cancel()
        assert (await failing)[0] is CANCELLED
        await server.until(lambda: peer.asked[1].reset == 8)
        await peer.request(3)
        peer.answer(3, prefixed(b"next"), ends=WELL)
        assert await waiting == [b"next"]


@played
async def test_a_call_that_nobody_waits_for_any_more_is_given_up() -> None:
    async with connected() as (channel, peer, server):
        for waiting in (taken, anext):
            task = asyncio.ensure_future(waiting(asks(channel)))
            number = 2 * len(peer.asked) + 1
            await peer.request(number)
            task.cancel()
            await server.until(lambda: peer.asked[number].reset == 8)  # noqa: B023
            assert task.cancelled()


@played
async def test_a_call_that_is_given_up_before_it_begins_or_after_its_end_sends_nothing() -> None:
    async with connected() as (channel, peer, _):
        asks(channel).cancel()
        call = asks(channel)
        taking = asyncio.create_task(taken(call))
        await peer.request(1)
        peer.answer(1, prefixed(b"whole"), ends=WELL)
        assert await taking == [b"whole"]
        call.cancel()
        await peer.settle()
        assert peer.frames.count((RESET, 1)) == 0 and list(peer.asked) == [1]
        assert await taken(call) == []


@pytest.mark.parametrize("by", ["call", "task"])
@played
async def test_a_call_that_is_given_up_while_it_waits_for_room_leaves_nothing_at_the_server(by: str) -> None:
    async with connected() as (channel, peer, server):
        await peer.settle(MOST, 1)
        first = asyncio.create_task(taken(asks(channel)))
        await peer.request(1)
        call = asks(channel)
        waiting = asyncio.create_task(failure(call))
        await peer.settle()
        call.cancel() if by == "call" else waiting.cancel()
        peer.answer(1, ends=WELL)
        assert await first == []
        if by == "call":
            assert (await waiting)[0] is CANCELLED
        await peer.settle()
        assert [one.reset for one in peer.asked.values()][1:] == ([8] if by == "call" else [])
        after = asyncio.create_task(taken(asks(channel)))
        await server.until(lambda: peer.http2.open_inbound_streams == 1)
        peer.answer(max(peer.asked), prefixed(b"after"), ends=WELL)
        assert await after == [b"after"]


# -- connections -------------------------------------------------------------------------------------------------------


@played
async def test_calls_that_begin_together_share_one_connection() -> None:
    async with Server(says=b"here") as server:
        with channel_to(server.address) as channel:
            assert await asyncio.gather(*(taken(asks(channel)) for _ in range(5))) == [[b"here"]] * 5
            assert len(server.peers) == 1


@played
async def test_a_server_that_goes_away_ends_the_calls_that_it_has_seen_and_the_next_one_has_a_new_connection() -> None:
    async with connected() as (channel, peer, server):
        seen = asyncio.create_task(taken(asks(channel)))
        late = asyncio.create_task(failure(asks(channel)))
        await peer.request(3)
        peer.leave(1)
        assert await late == (UNAVAILABLE, "the server is going away")
        after = asyncio.create_task(taken(asks(channel)))
        other = await server.peer(1)
        await other.request(1)
        other.answer(1, prefixed(b"new"), ends=WELL)
        assert await after == [b"new"]
        peer.answer(1, prefixed(b"old"), ends=WELL)
        assert await seen == [b"old"]
        await server.until(lambda: peer.lost)


@played
async def test_a_connection_that_is_lost_fails_its_calls_after_what_has_come_and_the_next_has_a_new_one() -> None:
    async with connected() as (channel, peer, server):
        call = asks(channel)
        first = asyncio.create_task(anext(call))
        await peer.request(1)
        peer.answer(1, prefixed(b"first") + prefixed(b"second")[:7])
        assert await first == b"first"
        peer.drop()
        code, details = await failure(call)
        assert code is UNAVAILABLE and "the connection was lost" in details
        after = asyncio.create_task(taken(asks(channel)))
        other = await server.peer(1)
        await other.request(1)
        other.answer(1, ends=WELL)
        assert await after == []


@played
async def test_a_server_that_does_not_speak_http_2_fails_each_call() -> None:
    async with connected() as (channel, peer, _):
        failing = [asyncio.create_task(failure(asks(channel))) for _ in range(2)]
        await peer.request(3)
        peer.say(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        for one in failing:
            code, details = await one
            assert code is UNAVAILABLE and "does not speak HTTP/2" in details


@played
async def test_a_channel_that_is_closed_fails_its_calls() -> None:
    async with connected() as (channel, peer, _):
        failing = asyncio.create_task(failure(asks(channel)))
        await peer.request(1)
        channel.close()
        assert (await failing)[0] is UNAVAILABLE


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "localhost:{}", "ipv4:127.0.0.1:{}", "dns:///localhost:{}"])
@played
async def test_a_server_is_found_by_each_form_of_its_address(form: str) -> None:
    async with Server(says=b"found") as server:
        with channel_to(form.format(server.port)) as channel:
            assert await taken(asks(channel)) == [b"found"]


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "ipv4:127.0.0.1:{0},127.0.0.1:{0}", "dns:///localhost:{}"])
@played
async def test_a_server_that_is_gone_is_named_and_a_later_one_on_its_port_is_found(form: str) -> None:
    async with Server(says=b"before") as server:
        port = server.port
    with channel_to(form.format(port)) as channel:
        for says in (b"later", b"last"):
            code, details = await failure(asks(channel))
            assert code is UNAVAILABLE and f"127.0.0.1:{port}: " in details.replace("::1:", "127.0.0.1:")
            async with Server(says, port) as server:
                assert await taken(asks(channel)) == [says]
                running = await channel.connection()
            while running.open:
                await asyncio.gather(failure(asks(channel)))


@played
async def test_a_name_that_nobody_knows_is_a_failure_that_names_it() -> None:
    name = ".".join(["longer-than-any-name-may-be"] * 20)
    with channel_to(f"dns:///{name}:80") as channel:
        code, details = await failure(asks(channel))
        assert code is UNAVAILABLE and details.startswith(f"dns:///{name}:80: ")


@played
async def test_several_addresses_are_asked_in_turn_one_that_is_gone_is_not_and_it_is_again_when_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr("labdoor.channel.time", SimpleNamespace(monotonic=lambda: now))
    async with AsyncExitStack() as stack:
        stays = await stack.enter_async_context(Server(says=b"stays"))
        async with Server(says=b"goes") as goes:
            channel = stack.enter_context(channel_to(f"ipv4:{stays.address},{goes.address}"))
            answers = [(await taken(asks(channel)))[0] for _ in range(6)]
            assert answers in ([b"stays", b"goes"] * 3, [b"goes", b"stays"] * 3)
            goes.says = None
            running = [asyncio.create_task(anext(asks(channel))) for _ in range(2)]
            await goes.until(lambda: len(goes.peers[0].asked) == 4)
        found = await asyncio.gather(*running, return_exceptions=True)
        assert b"stays" in found and "UNAVAILABLE" in str(found)
        assert [await taken(asks(channel)) for _ in range(4)] == [[b"stays"]] * 4
        back = await stack.enter_async_context(Server(b"back", goes.port))
        now += AGAIN_S
        assert [await taken(asks(channel)) for _ in range(4)] == [[b"stays"]] * 4
        assert back.peers == []
        now += 0.01
        while await taken(asks(channel)) != [b"back"]:
            pass
        assert len({(await taken(asks(channel)))[0] for _ in range(2)}) == 2
        assert (len(stays.peers), len(back.peers)) == (1, 1)
