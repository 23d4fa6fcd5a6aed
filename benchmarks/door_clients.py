"""Two clients that cost little, of the OpenAI API and of Triton's gRPC: what is compared is the way of the tokens.

Each counts the responses that have text, and parses no more of them than that takes. Both keep their connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
from tritonclient.grpc import service_pb2

from labdoor.triton import STREAM, first_text

#: Asks for so many tokens: when it was sent, then the arrival of each text, as of time.perf_counter().
Ask = Callable[[int], Awaitable[list[float]]]
TEXT, NO_TEXT, DONE = b'"text":"', b'"text":""', b"data: [DONE]"


def processor_ms(pid: int) -> float:
    """Milliseconds of processor time that a process's live threads have used.

    Source: the first number of /proc/PID/task/TID/schedstat, nanoseconds (Documentation/scheduler/sched-stats.rst).
    """
    return sum(int(one.read_text().split()[0]) for one in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e6


class OverHttp(asyncio.Protocol):
    """One connection to the API; one request at a time."""

    def __init__(self, model: str, prompt: str) -> None:
        self._said = {"model": model, "prompt": prompt, "ignore_eos": True, "stream": True}
        self._transport: Any = None
        self._rest = b""  # of an event that is not whole
        self._times: list[float] = []
        self._done: asyncio.Future[None] | None = None

    @classmethod
    async def to(cls, port: int, model: str, prompt: str) -> OverHttp:
        return (await asyncio.get_running_loop().create_connection(lambda: cls(model, prompt), "127.0.0.1", port))[1]

    async def ask(self, tokens: int) -> list[float]:
        body = json.dumps(self._said | {"max_tokens": tokens}).encode()
        self._rest, self._done = b"", asyncio.get_running_loop().create_future()
        self._times = [time.perf_counter()]
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._transport.write(head + body)
        await self._done
        return self._times

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        events, _, self._rest = (self._rest + data).rpartition(b"\n\n")
        self._times += [time.perf_counter()] * (events.count(TEXT) - events.count(NO_TEXT))
        if DONE in events and self._done and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done and not self._done.done():
            self._done.set_exception(ConnectionError("the door closed the connection"))


class OverGrpc:
    """One channel to Triton, and any number of requests on it. Use as an asynchronous context manager."""

    def __init__(self, endpoint: str, model: str, prompt: str) -> None:
        self._channel = grpc.aio.insecure_channel(endpoint)
        self._call = self._channel.unary_stream(
            STREAM, response_deserializer=service_pb2.ModelStreamInferResponse.FromString
        )
        self._model, self._prompt = model, prompt.encode()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def ask(self, tokens: int) -> list[float]:
        request = service_pb2.ModelInferRequest(model_name=self._model)
        request.inputs.add(name="text_input", datatype="BYTES", shape=[1, 1])
        request.raw_input_contents.append(len(self._prompt).to_bytes(4, "little") + self._prompt)
        request.parameters["max_tokens"].int64_param = tokens
        request.parameters["ignore_eos"].bool_param = True
        times = [time.perf_counter()]
        async for response in self._call(request.SerializeToString()):
            if response.error_message:
                raise RuntimeError(response.error_message)
            if first_text(response.infer_response, "text_output"):  # half a character has none: the door sends nothing
                times.append(time.perf_counter())
        return times
