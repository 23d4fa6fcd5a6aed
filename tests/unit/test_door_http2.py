"""The door's client of HTTP/2 against a strict server of another make: requests, their limits, and their ends."""

from __future__ import annotations

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from h2_client import connected
from h2_peer import WELL, played

from labdoor.http2 import DATA, RESET, WINDOW_UPDATE, Broken, frame

MOST, WINDOW = SettingCodes.MAX_CONCURRENT_STREAMS, SettingCodes.INITIAL_WINDOW_SIZE


@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 254, 255, 256, 16_000, 40_000])
@played
async def test_metadata_of_any_length_arrives_with_its_name_in_small_letters(size: int) -> None:
    async with connected() as client:
        name = "n" * min(max(size, 1), 300)
        call = await client.asks(metadata={"TraceState": "v" * size, name: "é"})
        asked = await client.peer.request(call.number)
        assert asked.headers == [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/service/Method"),
            (b":authority", b"localhost"),
            (b"tracestate", b"v" * size),
            (name.encode(), "é".encode()),
        ]
        assert asked.body == b"?"
        await client.ends(call)


@played
async def test_a_server_that_keeps_no_table_of_headers_is_understood() -> None:
    async with connected() as client:
        await client.peer.settle(SettingCodes.HEADER_TABLE_SIZE, 0)
        for _ in range(2):
            call = await client.asks()
            await client.peer.request(call.number)
            await client.ends(call)


@pytest.mark.parametrize("first", ["call", "all"])
@played
async def test_a_request_longer_than_the_servers_windows_waits_for_both(first: str) -> None:
    body = bytes(range(256)) * 400
    async with connected() as client:
        client.peer.taking = False
        asking = await client.waits(body)
        (number,) = client.peer.asked
        asked = client.peer.asked[number]
        assert asked.body == body[: 2**16 - 1]
        for which in (number, None) if first == "call" else (None, number):
            assert not asked.whole and len(asked.body) == 2**16 - 1
            client.peer.open(len(body), which)
            await client.peer.settle()
        assert (await client.peer.request(number)).body == body
        await client.ends(await asking)
        await client.peer.settle()
        assert (RESET, number) not in client.peer.frames


@played
async def test_a_window_that_the_server_changes_in_the_middle_counts_for_calls_that_have_begun() -> None:
    body = b"x" * 1000
    async with connected() as client:
        client.peer.taking = False
        await client.peer.settle(WINDOW, 100)
        asking = await client.waits(body)
        (asked,) = client.peer.asked.values()
        assert len(asked.body) == 100
        await client.peer.settle(WINDOW, 300)
        assert len(asked.body) == 300
        await client.peer.settle(WINDOW, 50)
        client.peer.open(250, 1)
        await client.peer.settle()
        assert len(asked.body) == 300, "250 fewer, 250 more"
        client.peer.open(1, 1)
        await client.peer.settle()
        assert len(asked.body) == 301
        await client.peer.settle(WINDOW, 749)
        assert (await client.peer.request(1)).body == body
        await client.ends(await asking)


@played
async def test_a_request_that_is_answered_before_all_of_it_was_sent_is_ended_on_both_sides() -> None:
    async with connected() as client:
        client.peer.taking = False
        asking = await client.waits(b"x" * 100_000)
        client.peer.answer(1, ends=WELL)
        assert (await (await asking).over()).fields[b"grpc-status"] == b"0"
        await client.server.until(lambda: client.peer.http2.open_inbound_streams == 0)
        assert not client.peer.asked[1].whole
        assert client.peer.frames.count((RESET, 1)) == 1


@played
async def test_a_request_that_is_broken_off_before_all_of_it_was_sent_is_not_gone_on_with() -> None:
    async with connected() as client:
        client.peer.taking = False
        asking = await client.waits(b"x" * 100_000)
        client.peer.reset(1, ErrorCodes.REFUSED_STREAM)
        assert (await (await asking).over()).reset == ErrorCodes.REFUSED_STREAM
        sent = client.peer.frames.count((DATA, 1))
        client.peer.say(frame(WINDOW_UPDATE, 0, 0, bytes((0, 1, 0, 0))))
        await client.peer.settle()
        assert (client.peer.frames.count((DATA, 1)), client.peer.frames.count((RESET, 1))) == (sent, 0)


@played
async def test_calls_beyond_those_that_the_server_takes_at_a_time_wait_and_then_go_on() -> None:
    async with connected() as client:
        await client.peer.settle(MOST, 2)
        begun = [await client.asks(), await client.asks()]
        waiting = [await client.waits() for _ in range(3)]
        assert list(client.peer.asked) == [1, 3]
        await client.ends(begun[0])
        begun.append(await waiting[0])
        await client.peer.settle()
        assert list(client.peer.asked) == [1, 3, 5]
        await client.peer.settle(MOST, 4)
        begun += [await waiting[1], await waiting[2]]
        for call in begun[1:]:
            await client.peer.request(call.number)
            await client.ends(call)


@played
async def test_a_call_that_is_given_up_says_so_once_and_another_takes_its_place() -> None:
    async with connected() as client:
        await client.peer.settle(MOST, 1)
        call = await client.asks()
        waiting = await client.waits()
        client.connection.reset(call.number)
        client.connection.reset(call.number)
        after = await waiting
        await client.peer.request(after.number)
        assert client.peer.asked[call.number].reset == ErrorCodes.CANCEL
        assert client.peer.frames.count((RESET, call.number)) == 1
        await client.ends(after)
        client.connection.reset(after.number)
        await client.peer.settle()
        assert (RESET, after.number) not in client.peer.frames


@played
async def test_a_call_that_is_given_up_while_it_waits_is_never_sent_and_holds_no_place() -> None:
    async with connected() as client:
        await client.peer.settle(MOST, 1)
        call = await client.asks()
        waiting, later = await client.waits(), await client.waits()
        waiting.cancel()
        await client.ends(call)
        after = await later
        await client.peer.request(after.number)
        await client.ends(after)
        assert list(client.peer.asked) == [1, 3]


@pytest.mark.parametrize("error", [0, 2, 7, 8, 11, 13, 2**32 - 1])
@played
async def test_a_call_that_the_server_breaks_off_ends_with_its_error_and_frees_its_place(error: int) -> None:
    async with connected() as client:
        await client.peer.settle(MOST, 1)
        call = await client.asks()
        waiting = await client.waits()
        client.peer.reset(call.number, error)
        assert ((await call.over()).reset, call.why) == (error, "")
        await client.peer.request((await waiting).number)
        await client.ends(await waiting)


@played
async def test_of_a_server_that_goes_away_the_calls_that_it_has_seen_end_well_and_the_others_are_lost() -> None:
    async with connected() as client:
        await client.peer.settle(MOST, 3)
        seen, also, late = [await client.asks() for _ in range(3)]
        waiting = await client.waits()
        client.peer.leave(2**31 - 1)
        with pytest.raises(Broken, match="going away"):
            await waiting
        assert not client.connection.open and not late.why, "which calls is not said yet"
        client.peer.leave(also.number)
        assert "going away" in (await late.over()).why
        with pytest.raises(Broken):
            await client.asks()
        await client.ends(seen)
        await client.peer.settle()
        assert not client.peer.lost
        await client.ends(also)
        await client.server.until(lambda: client.peer.lost)


@pytest.mark.parametrize("close", ["both", "server"])
@played
async def test_a_connection_that_is_lost_loses_the_calls_that_run_and_those_that_wait(close: str) -> None:
    async with connected() as client:
        await client.peer.settle(MOST, 2)
        client.peer.taking = False
        runs, sends = await client.asks(), await client.waits(bytes(2**17))
        waits = await client.waits()
        client.peer.drop() if close == "both" else client.peer.finish()
        assert "the connection was lost" in (await runs.over()).why
        for one in (sends, waits):
            with pytest.raises(Broken, match="the connection was lost"):
                await one
        with pytest.raises(Broken, match="the connection was lost"):
            await client.asks()
