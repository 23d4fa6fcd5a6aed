"""The door's HTTP/2 client and odd frames, also those that a strict server would never send."""

from __future__ import annotations

import pytest
from h2.events import PingAckReceived, SettingsAcknowledged
from h2.settings import SettingCodes
from h2_client import connected
from h2_peer import HEAD, WELL, played
from hyperframe.frame import ContinuationFrame, DataFrame, Frame, HeadersFrame, PingFrame

from labdoor import http2
from labdoor.http2 import frame

RESERVED = 2**31
STARTED = {b":status": b"200", b"content-type": b"application/grpc"}


@pytest.mark.parametrize("flags", [["PADDED"], ["PRIORITY"], ["PADDED", "PRIORITY"]])
@played
async def test_what_surrounds_the_content_of_a_frame_is_no_part_of_it(flags: list[str]) -> None:
    async with connected() as client:
        call = await client.asks()
        block = client.peer.http2.encoder.encode(HEAD)
        head = HeadersFrame(call.number, block, pad_length=7 * ("PADDED" in flags), flags=["END_HEADERS", *flags])
        data = [DataFrame(call.number, one, pad_length=9, flags=["PADDED"]) for one in (b"con", b"", b"tent")]
        end = DataFrame(call.number, flags=["END_STREAM"])
        frames: list[Frame] = [head, *data, end]
        client.peer.say(*(one.serialize() for one in frames))
        await call.over()
        assert (call.fields, call.got) == (STARTED, b"content")


@played
async def test_padding_counts_as_taken() -> None:
    async with connected() as client:
        call = await client.asks()
        await client.peer.request(call.number)
        client.peer.answer(call.number)
        for _ in range(2 * http2.WINDOW // 256):
            await client.server.until(lambda: client.peer.http2.local_flow_control_window(call.number) > 256)
            client.peer.answer(call.number, b"x", head=False, padding=255)
        client.peer.answer(call.number, head=False, ends=WELL)
        assert len((await call.over()).got) == 2 * http2.WINDOW // 256


@played
async def test_headers_may_go_on_in_other_frames_from_any_place() -> None:
    async with connected() as client:
        block = client.peer.http2.encoder.encode([(name, value, True) for name, value in HEAD])
        for cut in range(len(block) + 1):
            call = await client.asks()
            parts = block[:cut], block[cut : (cut + len(block)) // 2], block[(cut + len(block)) // 2 :]
            frames: list[Frame] = [HeadersFrame(call.number, parts[0], flags=["END_STREAM"])]
            frames.append(ContinuationFrame(call.number, parts[1]))
            frames.append(ContinuationFrame(call.number, parts[2], flags=["END_HEADERS"]))
            client.peer.say(*(one.serialize() for one in frames))
            assert (await call.over()).fields == STARTED


@played
async def test_what_still_comes_of_a_call_that_was_given_up_is_passed_over_but_its_headers_are_remembered() -> None:
    async with connected() as client:
        first = await client.given_up()
        block = client.peer.http2.encoder.encode([*HEAD, ("kept", "in the table")])
        head = HeadersFrame(first.number, block, flags=["END_HEADERS"])
        client.peer.say(head.serialize(), DataFrame(first.number, b"late", flags=["END_STREAM"]).serialize())
        second = await client.asks()
        await client.peer.request(second.number)
        again = client.peer.http2.encoder.encode([*HEAD, ("kept", "in the table")])
        assert len(again) < len(HEAD) + 2, "by their places in the table"
        client.peer.say(HeadersFrame(second.number, again, flags=["END_HEADERS", "END_STREAM"]).serialize())
        assert (await second.over()).fields == STARTED | {b"kept": b"in the table"}
        assert (first.fields, first.got) == ({}, b"")


@played
async def test_the_window_of_all_calls_is_opened_again_also_by_what_nobody_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2, "ALL", 2**16)
    async with connected() as client:
        given_up = await client.given_up()
        before = client.peer.http2.outbound_flow_control_window
        client.peer.say(*(DataFrame(given_up.number, bytes(2**14)).serialize() for _ in range(8)))
        await client.peer.settle()
        assert client.peer.http2.outbound_flow_control_window > before + 2**16
        call = await client.asks()
        await client.peer.request(call.number)
        client.peer.answer(call.number, bytes(2**20), ends=WELL)
        assert (await call.over()).got == bytes(2**20)


@played
async def test_a_ping_is_answered_with_its_own_bytes_and_an_answer_is_not() -> None:
    async with connected() as client:
        client.peer.say(PingFrame(0, b"answered", flags=["ACK"]).serialize(), PingFrame(0, b"12345678").serialize())
        await client.peer.settle()
        pings = [one.ping_data for one in client.peer.events if isinstance(one, PingAckReceived)]
        assert pings.count(b"12345678") == 1 and b"answered" not in pings


@played
async def test_settings_are_acknowledged_once_each_time() -> None:
    async with connected() as client:
        for value in (1, 2, 3):
            await client.peer.settle(SettingCodes.MAX_CONCURRENT_STREAMS, value)
        await client.peer.settle()
        assert sum(isinstance(one, SettingsAcknowledged) for one in client.peer.events) == 4, "and the first ones"


@played
async def test_the_server_is_told_to_push_nothing_and_how_much_is_taken_of_a_call() -> None:
    async with connected() as client:
        await client.peer.settle()
        told = client.peer.http2.remote_settings
        assert (told.enable_push, told.initial_window_size) == (0, http2.WINDOW)


@played
async def test_bits_that_have_no_meaning_are_passed_over() -> None:
    async with connected() as client:
        client.peer.taking = False
        await client.peer.settle(SettingCodes.INITIAL_WINDOW_SIZE, 1)
        seen = await client.waits(b"123")
        late = await client.asks()
        client.peer.http2.increment_flow_control_window(1, 1)
        assert client.peer.http2.data_to_send() == frame(http2.WINDOW_UPDATE, 0, 1, b"\0\0\0\1")
        client.peer.say(frame(http2.WINDOW_UPDATE, 0, RESERVED | 1, b"\x80\0\0\1"))
        await client.peer.settle()
        assert client.peer.asked[1].body == b"12"
        client.peer.open(1, 1)
        call = await seen
        client.peer.say(frame(http2.GOAWAY, 0, 0, (RESERVED | call.number).to_bytes(4, "big") + bytes(4)))
        assert "going away" in (await late.over()).why
        client.peer.say(frame(http2.DATA, http2.END_STREAM, RESERVED | call.number, b"content"))
        assert (await call.over()).got == b"content"


@pytest.mark.parametrize("kind", [2, 10, 12, 16, 255])
@played
async def test_kinds_of_frames_and_settings_that_it_does_not_know_are_passed_over(kind: int) -> None:
    async with connected() as client:
        call = await client.asks()
        await client.peer.request(call.number)
        for stream in (0, call.number):
            client.peer.say(frame(kind, 0xFF, stream, b"12345"))
        client.peer.say(frame(http2.SETTINGS, http2.ACK, 0))
        await client.peer.settle(SettingCodes.ENABLE_CONNECT_PROTOCOL, 1)
        await client.ends(call)


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        frame(99, 0, 0, bytes(2**14 + 1))[: http2.HEAD],
        frame(http2.CONTINUATION, http2.END_HEADERS, 1),
        frame(http2.HEADERS, 0, 1) + frame(http2.DATA, 0, 1, b"content"),
        frame(http2.HEADERS, 0, 1) + frame(http2.HEADERS, http2.END_HEADERS, 1),
        frame(http2.HEADERS, http2.END_HEADERS, 1, b"\xff\xff\xff\xff"),
        frame(http2.HEADERS, http2.END_HEADERS, 1, b"\0\x05a"),
        frame(http2.DATA, http2.PADDED, 1),
        frame(http2.DATA, http2.PADDED, 1, b"\x03ab"),
        frame(http2.HEADERS, http2.END_HEADERS | http2.PADDED, 1, b"\x09\x88"),
        *(frame(kind, 0, 1, b"123") for kind in (http2.WINDOW_UPDATE, http2.RESET, http2.SETTINGS, http2.GOAWAY)),
    ],
)
@played
async def test_what_is_not_http_2_loses_all_calls_and_the_connection(garbage: bytes) -> None:
    async with connected() as client:
        calls = [await client.asks(), await client.asks()]
        client.peer.say(garbage + frame(http2.DATA, 0, 1, b"after it"))
        for call in calls:
            assert "does not speak HTTP/2" in (await call.over()).why
        await client.server.until(lambda: client.peer.lost)
        assert (calls[0].got, client.connection.open) == (b"", False)
