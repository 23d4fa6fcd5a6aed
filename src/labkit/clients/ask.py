"""One question to a text model of a running stack, whatever its tensors."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

from labkit.clients.base import TELL_S, InFlightClient, Silence
from labkit.clients.stream import TextStream
from labkit.clients.text_model import TextModel
from labkit.clients.unary import UnaryClient
from labkit.errors import LabError
from labkit.records import RequestRecord

TIMEOUT_S = 120.0  # without a response
RESPONSES = 4  # for each token that was asked for, at most; an answer begins and ends with some that have no token
MOST_TEXT = 64 * 2**20  # characters of an answer


def generate(
    endpoint: str, model: str, prompt: str, tokens: int, stream: bool, standing: Callable[[], bool] = bool
) -> Iterator[str]:
    """The prompt and what the model makes of it, in pieces as they arrive with ``stream``, else as one.

    Args:
        standing: whether the model's clock stands still, so that no answer can come.

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
        patience = Silence(TIMEOUT_S, standing)
        while not (record.end if stream else channel.ended(record, TELL_S)):
            if stream:
                with contextlib.suppress(queue.Empty):
                    arrived.get(timeout=TELL_S)
                channel.check()
                pieces = [text for _, text in list(record.responses)[yielded:]]
                yielded += len(pieces)
                yield "".join(pieces)
            patience.check(len(record.responses))
        channel.wait(record, timeout=TELL_S)  # raises its error
        yield "".join(text for _, text in record.responses[yielded:])


def connection(model: TextModel, endpoint: str, **stream: Any) -> InFlightClient:
    """The client for one question to that model: a stream (with these arguments) unless the model has none to give."""
    return UnaryClient(endpoint) if model.cached else TextStream(endpoint, **stream)
