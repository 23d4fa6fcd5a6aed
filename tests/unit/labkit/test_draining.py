"""The gateway of exercise 07e without a server."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest
from waiting import eventually

from labkit.client import draining
from labkit.client.draining import Draining, TryOutcome, User
from labkit.client.gateway import Cut, Gateway, Refused
from labkit.evidence.records import RequestRecord

REQUEST = {"prompt": "one two three four", "tokens": 4}


class Stream:
    """A stream to a server that makes a word every few milliseconds; its step log is ``log``."""

    log: ClassVar[list[Any]] = []

    def __init__(self, endpoint: str) -> None:
        self.over = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.over.set()

    def answer(self, record: RequestRecord, words: list[str], tokens: int) -> None:
        for number in range(tokens):
            if self.over.wait(0.005):
                return
            Stream.log.append(SimpleNamespace(ids=[record.id], batch=1))
            record.responses.append((time.monotonic(), f"{words[number % len(words)]} "))
        record.end = time.monotonic()


class Model:
    @classmethod
    def of(cls, endpoint: str, name: str) -> Model:
        return cls()

    def send(self, stream: Stream, prompt: str, tokens: int) -> RequestRecord:
        record = RequestRecord("streams", "streams", prompt, {}, id=str(random.getrandbits(60)))
        threading.Thread(target=stream.answer, args=(record, prompt.split(), tokens), daemon=True).start()
        return record


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "TextStream", Stream)
    monkeypatch.setattr(draining, "TextModel", Model)
    monkeypatch.setattr(Stream, "log", [])


def gateway(user: User) -> Draining:
    return Draining("", "streams", {"user": user})


def test_a_refusal_says_when_to_come_back_or_nothing() -> None:
    with gateway(User([TryOutcome(503, retry_after=7), TryOutcome(400)])) as door:
        client = Gateway(door.url("user"))
        refusals = []
        for _ in range(2):
            with pytest.raises(Refused) as refused:
                client.post(REQUEST, "key")
            refusals.append((refused.value.status, refused.value.retry_after))
    assert refusals == [(503, 7.0), (400, None)]
    assert door.ids == []


def test_an_answer_that_was_cut_goes_on_and_is_computed_once() -> None:
    with gateway(User([TryOutcome(cut=0), TryOutcome(cut=2)])) as door:
        client = Gateway(door.url("user"))
        tokens: list[str] = []
        with pytest.raises(Cut):
            client.post(REQUEST, "key")
        with pytest.raises(Cut):
            tokens += [*client.post(REQUEST, "key")]
        for token in client.post(REQUEST, "key", after=2):
            tokens.append(token)
    assert tokens == ["three ", "four "]
    assert door.ids == [Stream.log[0].ids[0]]


def test_only_sleep_moves_the_clock() -> None:
    with gateway(User()) as door:
        client = Gateway(door.url("user"))
        client.sleep(2.5)
        client.sleep(0.5)
        assert client.now() == 3.0


@pytest.mark.parametrize("seen", [True, False], ids=["between two tokens", "while a token is written"])
def test_a_client_that_closes_its_answer_stops_the_server(monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    if not seen:
        monkeypatch.setattr(draining._Handler, "_gone", lambda handler: False)
    user = User(leaves=2)
    with gateway(user) as door:
        client = Gateway(door.url("user"))
        answer = client.post({"prompt": "one", "tokens": 10_000}, "key")
        there = [client.show(token) for token, _ in zip(answer, range(2), strict=False)]
        answer.close()
        eventually(lambda: user.closed)
    assert there == [True, False]
    assert len(Stream.log) < 10_000
