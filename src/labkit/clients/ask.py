"""One question to a text model of a running stack, whatever its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from labkit.clients.base import InFlight
from labkit.clients.stream import TextStream
from labkit.clients.text_model import TextModel
from labkit.clients.unary import UnaryClient
from labkit.errors import LabError

TIMEOUT_S = 120.0


def generate(endpoint: str, model: str, prompt: str, tokens: int, stream: bool) -> Iterator[str]:
    """The prompt and what the model makes of it, in pieces as they arrive with ``stream``, else as one.

    Raises:
        LabError: in Triton's words.
    """
    import queue

    arrived: queue.SimpleQueue[bool] = queue.SimpleQueue()
    if tokens < 1:
        raise LabError(f"{tokens} output tokens cannot be generated", "", "-o takes 1 or more")
    text_model = TextModel.of(endpoint, model)
    with connection(text_model, endpoint, on_token=lambda record: arrived.put(True)) as channel:
        record = text_model.send(channel, prompt, tokens)
        if text_model.answers_alone:
            yield prompt
        told = 0
        if stream:
            while not record.end:
                try:
                    arrived.get(timeout=0.2)
                except queue.Empty:
                    channel.check()
                    continue
                pieces = [text for _, text in list(record.responses)[told:]]
                told += len(pieces)
                yield "".join(pieces)
        channel.wait(record, timeout=TIMEOUT_S)
        yield "".join(text for _, text in record.responses[told:])


def connection(model: TextModel, endpoint: str, **stream: Any) -> InFlight:
    """The client for one question to that model: a stream (with these arguments) unless the model has none to give."""
    return UnaryClient(endpoint) if model.cached else TextStream(endpoint, **stream)
