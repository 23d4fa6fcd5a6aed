"""The fuzzer's requests that are bytes on a connection are what their kind says, and a whole one is waited for."""

from __future__ import annotations

import random
import re
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from machinery import ROOT

sys.path.insert(0, str(ROOT))  # benchmarks/ is no package that anybody installs
from benchmarks.hostile import framing, http2, streams
from benchmarks.hostile.framing import LEAVE_S
from benchmarks.hostile.models import Model
from benchmarks.hostile.send import CANCELLED, REFUSED, SILENCE, Client
from benchmarks.hostile.sent import Sent

TEXT = {"name": "text_input", "datatype": "BYTES", "shape": [1]}
MODEL = Model(
    "m", [TEXT], [{**TEXT, "name": "text_output"}], frozenset(), decoupled=False, sequences=False, iterative=False
)
DRAWS = range(1500)


def frames(connection: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, flags and payload of each frame after the preface."""
    found, rest = [], connection.removeprefix(http2.PREFACE)
    while rest:
        size = int.from_bytes(rest[:3], "big")
        found.append((rest[3], rest[4], rest[9 : 9 + size]))
        rest = rest[9 + size :]
    return found


@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_call_in_pieces_ends_with_its_last_piece_and_not_before(step: int) -> None:
    whole = http2.message(bytes(50) + b"\0\1\0\1\0")  # equal bytes: each is one and the same object
    sent = http2.call([(":path", "/x")], [whole[at : at + step] for at in range(0, len(whole), step)])
    data = [(flags, payload) for kind, flags, payload in frames(sent) if kind == http2.DATA]
    assert b"".join(payload for _, payload in data) == whole
    assert [flags & http2.END_STREAM for flags, _ in data] == [0] * (len(data) - 1) + [1]


def test_a_client_leaves_early_only_where_its_request_is_not_whole() -> None:
    left = 0
    for seed in DRAWS:
        sent = framing.chunking(random.Random(seed), MODEL, "chunking")
        head, _, body = sent.body.partition(b"\r\n\r\n")
        lengths = re.findall(rb"\r\nContent-Length: (\d+)\b", head)
        short = b"Transfer-Encoding" not in head and len(lengths) == 1 and int(lengths[0]) > len(body)
        endless = body.startswith(b"f" * 16)
        assert sent.leave == (LEAVE_S if short or endless else None), sent
        left += sent.leave is not None
    assert 0 < left < len(DRAWS) / 4
    assert not any(framing.spellings(random.Random(seed), MODEL, "spellings").leave for seed in DRAWS)


def test_a_call_is_waited_for_unless_its_last_frame_is_missing() -> None:
    calls = [streams.calls(random.Random(seed), MODEL, "calls") for seed in DRAWS]
    ended = [bool(frames(sent.body)[-1][1] & http2.END_STREAM) for sent in calls]
    assert [sent.leave for sent in calls] == [None if end else LEAVE_S for end in ended]
    assert {True, False} == set(ended)


def test_most_odd_requests_have_one_oddity_which_nothing_else_hides() -> None:
    usual = ("POST", "/v2/", "HTTP/1.1")
    strange = 0
    for seed in DRAWS:
        sent = framing.spellings(random.Random(seed), MODEL, "spellings")
        head = sent.body.partition(b"\r\n\r\n")[0].decode("latin-1")
        method, path = head.split(" ")[0], head.split(" ")[1]
        plain = path.startswith(usual[1]) and path.rstrip("/").endswith(
            ("infer", "generate", "logging", "setting", "index", "status")
        )
        strange += (
            sent.protocol == "http1" and method == "POST" and not plain and "\r\nX: y" in head and sent.port == "http"
        )
    assert strange > len(DRAWS) / 5, "a strange path alone"


@pytest.mark.parametrize(("leave", "outcome"), [(None, SILENCE), (0.05, CANCELLED)])
@pytest.mark.parametrize("protocol", ["http1", "h2"])
def test_silence_after_a_whole_request_is_told_as_such(protocol: str, leave: float | None, outcome: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        client = Client(at, at, patience=0.2)
        assert client.send(Sent("x", "m", protocol, body=b"GET / HTTP/1.1\r\n\r\n", leave=leave))[0] == outcome
        client.close()


def test_an_interim_answer_is_not_the_answer() -> None:
    sent = Sent("x", "m", "http1", body=b"POST / HTTP/1.1\r\nExpect: 100-continue\r\n\r\n")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        at = f"127.0.0.1:{server.getsockname()[1]}"
        client = Client(at, at, patience=5)
        outcome = pool.submit(client.send, sent)
        with server.accept()[0] as connection:
            connection.recv(2**16)
            connection.sendall(
                b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 400 Bad Request\r\nContent-Length: 4\r\n\r\nbad!"
            )
        assert outcome.result() == (REFUSED, "bad!")
        client.close()
