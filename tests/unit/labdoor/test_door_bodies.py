"""What one body costs: no more than a second of the processor at a time, and a small multiple of its size in memory.

Each kind of body is drawn: what is repeated, where in the request, and how often.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import pytest
from checkout import ROOT
from hypothesis import example, given, settings
from hypothesis import strategies as some
from lab_errors import lab_error

from labdoor import requests
from labdoor.errors import ApiError
from labdoor.requests import MOST_BODY
from labdoor.vocabulary import PIECE, SHORT, Vocabulary

AT_ONCE_S = 1.0  # of the processor
MULTIPLE = 30  # bytes for each of a body's: an object in a list takes 64 beside what is in it, its text two
BASE = 2 * 2**20  # what a body of nothing takes
TINY = ROOT / "labs" / "shared" / "models" / "tiny-gpt2"
PLACES: dict[str, str] = {
    "messages": '{"model":"m","messages":[%s]}',
    "content": '{"model":"m","messages":[{"role":"user","content":[%s]}]}',
    "turn": '{"model":"m","messages":[{"role":"user","content":"x",%s}]}',
    "tool_calls": '{"model":"m","messages":[{"role":"assistant","content":"x","tool_calls":[%s]}]}',
    "prompt": '{"model":"m","prompt":[%s]}',
    "stop": '{"model":"m","prompt":"x","stop":[%s]}',
    "tools": '{"model":"m","prompt":"x","tools":[%s]}',
    "fields": '{"model":"m","prompt":"x",%s}',
    "nothing": '{"model":"m","prompt":"x","suffix":[%s]}',
    "schema": '{"model":"m","prompt":"x","response_format":'
    '{"type":"json_schema","json_schema":{"name":"a","schema":{"enum":[%s]}}}}',
    "unclosed": '{"model":"%s',
    "deep": "[%s",
}
PIECES = [
    *("0", "[]", "{}", '""', "null", "[[]]", '{"a":{}}', '{"role":"user","content":"x"}', '{"type":"text","text":"x"}'),
    *('"x"', '"\\u00e9\\ud83d\\ude00"', "1e400", "-", "\\", "[", '{"a":', '{"role":1}', '"\\\\"', " "),
]
BETWEEN = [",", "", ":"]
COUNTS = some.sampled_from([1, 30_000, 50_000, MOST_BODY])


def built(place: str, piece: str, between: str, count: int) -> bytes:
    """A body of at most MOST_BODY bytes. In an object what is repeated is a field, each with a name of its own."""
    count = min(count, (MOST_BODY - 200) // (len(piece) + len(between) + 12 * (place in ("fields", "turn"))))
    if place in ("fields", "turn"):
        inner = ",".join(f'"{number}":{piece}' for number in range(count))
    else:
        inner = between.join([piece] * count)
    return (PLACES[place] % inner).encode()[:MOST_BODY]


def looked_at(body: bytes) -> None:
    for kind in (requests.CompletionRequest, requests.ChatRequest):
        with suppress(ApiError):
            requests.parse_body(kind, body)


@settings(max_examples=5)  # beside those below
@given(
    place=some.sampled_from(sorted(PLACES)),
    piece=some.sampled_from(PIECES),
    between=some.sampled_from(BETWEEN),
    count=COUNTS,
)
@example("messages", "0", ",", MOST_BODY)
@example("messages", "{}", ",", 30_000)
@example("content", "0", ",", 40_000)
@example("fields", "1", ",", 40_000)
@example("turn", "1", ",", 40_000)
@example("deep", "[", "", MOST_BODY)
@example("unclosed", "\\", "", MOST_BODY)
@example("unclosed", '\\"', "", MOST_BODY)
def test_a_body_is_taken_or_refused_in_a_second_and_a_small_multiple_of_its_size(
    place: str, piece: str, between: str, count: int
) -> None:
    body = built(place, piece, between, count)
    began = time.thread_time()
    looked_at(body)
    assert time.thread_time() - began < 2 * AT_ONCE_S, "of two looks"
    tracemalloc.start()
    looked_at(body)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < MULTIPLE * len(body) + BASE


def test_what_people_send_is_far_from_the_limit_of_values() -> None:
    """A chat of 10,000 turns; a text of 4 MB that is full of commas, quotes and brackets is one value."""
    turns = [{"role": "user", "content": "Hi, there"}, {"role": "assistant", "content": "[]"}] * 5_000
    requests.parse_body(requests.ChatRequest, json.dumps({"model": "m", "messages": turns}).encode())
    text = ',"[]{},\\' * 300_000
    asked = requests.parse_body(requests.CompletionRequest, json.dumps({"model": "m", "prompt": text}).encode())
    assert asked.prompt == [text]


@pytest.fixture(scope="module")
def words() -> Vocabulary:
    return Vocabulary.of(str(TINY))


def test_weights_whose_configuration_is_no_object_are_refused(tmp_path: Path) -> None:
    shutil.copyfile(TINY / "tokenizer.json", tmp_path / "tokenizer.json")
    (tmp_path / "config.json").write_text("[]")
    with lab_error("tokenizer-unreadable"):
        Vocabulary.of(str(tmp_path))


LETTERS = some.sampled_from(["a", " ", "e\u0301\u6f22\n", "the cat ", "\U0001f600", "1", "ab c"])


@settings(max_examples=15)
@given(letters=LETTERS, size=some.sampled_from([SHORT, SHORT + 1, PIECE, 3 * PIECE, MOST_BODY]))
def test_counting_a_text_holds_no_loop_and_ends_where_the_context_does(
    letters: str, size: int, words: Vocabulary
) -> None:
    text = (letters * size)[:size]
    holds: list[float] = []

    async def beats(over: asyncio.Event) -> None:
        while not over.is_set():
            began = time.thread_time()
            await asyncio.sleep(0)
            holds.append(time.thread_time() - began)
            await asyncio.sleep(0.001)

    async def count() -> int | None:
        over = asyncio.Event()
        beating = asyncio.create_task(beats(over))
        found = await words.count(text)
        over.set()
        await beating
        return found

    began = time.process_time()
    found = asyncio.run(count())
    assert max(holds, default=0) < AT_ONCE_S
    assert time.process_time() - began < 3 * AT_ONCE_S, "a piece beyond the context at most"
    assert words.context and found and (found > words.context or len(text) <= PIECE)


@given(text=some.text("ab \u00e9\u6f22\n", max_size=3 * SHORT))
def test_a_text_of_one_piece_has_as_many_tokens_as_the_tokenizer_finds(text: str, words: Vocabulary) -> None:
    assert words.tokenizer
    assert asyncio.run(words.count(text)) == len(words.tokenizer.encode(text).ids)
