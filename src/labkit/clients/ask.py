"""One question to a text model of a running stack, whatever its tensors."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from typing import Any

from labkit.clients.base import InFlightClient
from labkit.clients.stream import TextStream
from labkit.clients.text_model import TextModel
from labkit.clients.unary import UnaryClient
from labkit.errors import LabError
from labkit.records import RequestRecord

TIMEOUT_S = 120.0  # without a response, and for an answer that comes whole
RESPONSES = 4  # for each token that was asked for, at most; an answer begins and ends with some that have no token
MOST_TEXT = 64 * 2**20  # characters of an answer


def generate(endpoint: str, model: str, prompt: str, tokens: int, stream: bool) -> Iterator[str]:
    """The prompt and what the model makes of it, in pieces as they arrive with ``stream``, else as one.

    Raises:
        LabError: in Triton's words.
    """
    arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()
    responses = characters = 0  # so far

    def take_response(record: RequestRecord) -> None:
        nonlocal responses, characters
        responses += 1
        characters += len(record.responses[-1][1]) if record.responses else 0
        if responses > RESPONSES * (tokens + 4) or characters > MOST_TEXT:
            channel.give_up(record, f"{tokens} tokens were asked for, and the answer does not end")
        arrived.put(True)

    if tokens < 1:
        raise LabError(
            f"{tokens} output tokens cannot be generated", "", "-o takes 1 or more", code="tokens-out-of-range"
        )
    text_model = TextModel.of(endpoint, model)
    with connection(text_model, endpoint, on_token=take_response) as channel:
        record = text_model.send(channel, prompt, tokens)
        if text_model.answers_alone:
            yield prompt
        yielded = 0
        if stream:
            last = time.monotonic()
            while not record.end:
                try:
                    arrived.get(timeout=0.2)
                except queue.Empty:
                    channel.check()
                    if time.monotonic() - last > TIMEOUT_S:
                        channel.give_up(record, f"nothing has come for {TIMEOUT_S:g} s")
                    continue
                last = time.monotonic()
                pieces = [text for _, text in list(record.responses)[yielded:]]
                yielded += len(pieces)
                yield "".join(pieces)
        channel.wait(record, timeout=TIMEOUT_S)
        yield "".join(text for _, text in record.responses[yielded:])


def connection(model: TextModel, endpoint: str, **stream: Any) -> InFlightClient:
    """The client for one question to that model: a stream (with these arguments) unless the model has none to give."""
    return UnaryClient(endpoint) if model.cached else TextStream(endpoint, **stream)
