"""Streams to the two GPT-2 models over gRPC, as a client of this lab opens them."""

import queue
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from waiting import DEADLINE_S


@dataclass
class Answer:
    """What came back for one request."""

    pieces: list[str] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    error: str = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def text_input(prompt: bytes) -> InferInput:
    """The prompt as every client of this lab sends it: shape [1, 1]."""
    tensor = InferInput("text_input", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[prompt]], dtype=np.object_))
    return tensor


class Stream:
    """One gRPC stream; use it as a context manager. Leaving it cancels what is still running."""

    def __init__(self, grpc: str, model: str, headers: Mapping[str, str] | None = None) -> None:
        self._client = InferenceServerClient(grpc)
        self._model = model
        self._events: queue.Queue[Any] = queue.Queue()
        self._client.start_stream(callback=lambda result, error: self._events.put((result, error)), headers=headers)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def send(self, name: str, prompt: bytes, parameters: dict[str, Any]) -> None:
        self._client.async_stream_infer(
            self._model, [text_input(prompt)], request_id=name, parameters=parameters, enable_empty_final_response=True
        )

    def next(self, timeout: float = DEADLINE_S) -> tuple[str, str, bool]:
        """The next response of any request: its name, its text, whether it is final. Raises what Triton says."""
        result, error = self._events.get(timeout=timeout)
        if error is not None:
            raise error
        response = result.get_response()
        value = result.as_numpy("text_output")
        text = value.item().decode() if value is not None else ""
        return response.id, text, response.parameters["triton_final_response"].bool_param


def ask(
    grpc: str,
    model: str,
    prompts: Sequence[bytes],
    parameters: Sequence[dict[str, Any]] | dict[str, Any],
    headers: Mapping[str, str] | None = None,
) -> list[Answer]:
    """The whole answers to prompts that are all sent at once on one stream."""
    each = [parameters] * len(prompts) if isinstance(parameters, dict) else parameters
    answers = [Answer() for _ in prompts]
    with Stream(grpc, model, headers) as stream:
        for number, (prompt, asked) in enumerate(zip(prompts, each, strict=True)):
            stream.send(str(number), prompt, asked)
        open_ = set(range(len(prompts)))
        while open_:
            name, text, final = stream.next()
            answers[int(name)].pieces.append(text)
            answers[int(name)].finals.append(final)
            if final:
                open_.remove(int(name))
    return answers
