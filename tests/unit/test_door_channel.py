"""The door's calls of gRPC to a server of another make that the test plays: messages and statuses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest
from grpc import StatusCode
from grpc_calls import asks, connected, failure, taken
from h2_peer import HEAD, WELL, played, prefixed
from hyperframe.frame import DataFrame, Frame, HeadersFrame
from hypothesis import given, settings
from hypothesis import strategies as some

from labdoor.http2 import WINDOW


@played
async def test_a_request_has_the_headers_that_grpc_asks_for_and_its_message() -> None:
    async with connected() as (channel, peer, _):
        taking = asyncio.create_task(taken(asks(channel, b"question", {"TraceParent": "00-1"})))
        asked = await peer.request(1)
        assert asked.headers == [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/service/Method"),
            (b":authority", b"localhost"),
            (b"te", b"trailers"),
            (b"content-type", b"application/grpc"),
            (b"traceparent", b"00-1"),
        ]
        assert asked.body == prefixed(b"question")
        peer.answer(1, prefixed(b"answer"), ends=WELL)
        assert await taking == [b"answer"]


@pytest.mark.parametrize("messages", [[], [b""], [b"one"], [b"one", b"", b"three", b"4" * 5000]])
@pytest.mark.parametrize("together", [False, True])
@played
async def test_messages_come_as_they_were_sent_in_a_frame_each_or_in_one(messages: list[bytes], together: bool) -> None:
    async with connected() as (channel, peer, _):
        taking = asyncio.create_task(taken(asks(channel)))
        await peer.request(1)
        peer.answer(1, *([prefixed(*messages)] if together else [prefixed(one) for one in messages]), ends=WELL)
        assert await taking == messages


@played
async def test_a_message_is_taken_before_the_next_one_is_there() -> None:
    async with connected() as (channel, peer, _):
        call = asks(channel)
        for number in range(3):
            taking = asyncio.create_task(anext(call))
            await peer.request(1)
            peer.answer(1, prefixed(b"%d" % number), head=not number)
            assert await taking == b"%d" % number
        peer.answer(1, head=False, ends=WELL)
        assert await taken(call) == []


@played
async def test_a_message_may_go_on_in_another_frame_from_any_place() -> None:
    content = prefixed(b"first", b"", b"third")
    async with connected() as (channel, peer, _):
        for cut in range(len(content) + 1):
            taking = asyncio.create_task(taken(asks(channel)))
            await peer.request(2 * cut + 1)
            peer.answer(2 * cut + 1, content[:cut], content[cut:], ends=WELL)
            assert await taking == [b"first", b"", b"third"]


def parts(content: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    return [content[begin:end] for begin, end in pairwise(places)]


@settings(deadline=None)
@given(
    messages=some.lists(some.binary(max_size=60), max_size=8),
    frames=some.lists(some.integers(0, 400), max_size=12),
    segments=some.lists(some.integers(0, 600), max_size=30),
    padding=some.integers(0, 20),
)
@played
async def test_messages_are_the_same_however_they_are_cut(
    messages: list[bytes], frames: list[int], segments: list[int], padding: int
) -> None:
    async with connected() as (channel, peer, _):
        taking = asyncio.create_task(taken(asks(channel)))
        await peer.request(1)
        flags = ["PADDED"] if padding else []
        data = [DataFrame(1, one, pad_length=padding, flags=flags) for one in parts(prefixed(*messages), frames)]
        head, end = (peer.http2.encoder.encode(fields) for fields in (HEAD, WELL))
        sent: list[Frame] = [HeadersFrame(1, head, flags=["END_HEADERS"]), *data]
        sent.append(HeadersFrame(1, end, flags=["END_HEADERS", "END_STREAM"]))
        connection = await channel.connection()
        for one in parts(b"".join(one.serialize() for one in sent), segments):
            connection.data_received(one)
        assert await taking == messages


@played
async def test_messages_longer_than_the_window_arrive_whole() -> None:
    messages = [bytes(size) for size in (WINDOW - 5, WINDOW, 2**24 + 7)]
    async with connected() as (channel, peer, _):
        taking = asyncio.create_task(taken(asks(channel)))
        await peer.request(1)
        peer.answer(1, prefixed(*messages), ends=WELL)
        assert await taking == messages


@played
async def test_of_a_call_whose_messages_are_not_taken_no_more_than_the_window_comes_and_others_go_on() -> None:
    messages = [b"%4096d" % number for number in range(100)]
    content = prefixed(*messages)
    async with connected() as (channel, peer, _):
        slow = asks(channel)
        taking = asyncio.create_task(anext(slow))
        await peer.request(1)
        peer.answer(1, content, ends=WELL)
        first = await taking
        await peer.settle()
        assert len(content) - peer.unsent(1) == WINDOW
        quick = asyncio.create_task(taken(asks(channel)))
        await peer.request(3)
        peer.answer(3, content, ends=WELL)
        assert await quick == messages
        await peer.settle()
        assert len(content) - peer.unsent(1) == WINDOW
        more = [await anext(slow) for _ in range(70)]
        await peer.settle()
        assert len(content) - peer.unsent(1) <= len(prefixed(first, *more)) + WINDOW
        assert [first, *more, *await taken(slow)] == messages


# -- ends --------------------------------------------------------------------------------------------------------------

STATUSES = [
    ("5", "no%20model%3A%20%C3%A9%25", StatusCode.NOT_FOUND, "no model: é%"),
    ("14", "", StatusCode.UNAVAILABLE, ""),
    ("16", "100% %zz", StatusCode.UNAUTHENTICATED, "100% %zz"),
    *((number, "?", StatusCode.UNKNOWN, "?") for number in ("2", "17", "-1", "words", "")),
    pytest.param("9" * 5000, "?", StatusCode.UNKNOWN, "?", id="more digits than Python reads"),
]


@pytest.mark.parametrize(("number", "message", "code", "details"), STATUSES)
@pytest.mark.parametrize("alone", [False, True])
@played
async def test_a_status_comes_after_the_messages_or_alone(
    number: str, message: str, code: StatusCode, details: str, alone: bool
) -> None:
    status = [("grpc-status", number), ("grpc-message", message)]
    async with connected() as (channel, peer, _):
        call = asks(channel)
        failing = asyncio.create_task(failure(call) if alone else anext(call))
        await peer.request(1)
        if alone:
            peer.http2.send_headers(1, [*HEAD, *status], end_stream=True)
            peer.flush()
            assert await failing == (code, details)
        else:
            peer.answer(1, prefixed(b"before"), ends=status)
            assert await failing == b"before"
            assert await failure(call) == (code, details)


@pytest.mark.parametrize("size", [0, 10, 3 * WINDOW])
@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        ("503", "UNAVAILABLE", "HTTP status 503"),
        ("404", "UNAVAILABLE", "HTTP status 404"),
        ("200", "UNKNOWN", "status"),
    ],
)
@played
async def test_an_answer_without_a_status_of_grpc_is_a_failure(status: str, code: str, why: str, size: int) -> None:
    async with connected() as (channel, peer, _):
        failing = asyncio.create_task(failure(asks(channel)))
        await peer.request(1)
        peer.http2.send_headers(1, [(":status", status), ("content-type", "text/plain")])
        peer.answer(1, b"x" * size, head=False, ends=[("date", "today")])
        found, details = await failing
        assert found.name == code and why in details


@pytest.mark.parametrize(
    ("error", "code"),
    [(7, "UNAVAILABLE"), (8, "CANCELLED"), (11, "RESOURCE_EXHAUSTED"), (0, "INTERNAL"), (2, "INTERNAL")],
)
@played
async def test_a_call_that_the_server_breaks_off_fails_by_its_error(error: int, code: str) -> None:
    async with connected() as (channel, peer, _):
        failing = asyncio.create_task(failure(asks(channel)))
        await peer.request(1)
        peer.reset(1, error)
        found, details = await failing
        assert found.name == code and f"HTTP/2 error {error}" in details
