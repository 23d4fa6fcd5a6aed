"""A text model as the OpenAI API knows it, a Triton that the test plays for it, and servers of the API."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

import grpc
import httpx
import uvicorn
from tritonclient.grpc import service_pb2, service_pb2_grpc
from waiting import eventually

from labdoor import app
from labdoor.__main__ import uvicorn_config
from labdoor.models import Model
from labdoor.triton import FINAL, MOST_MESSAGE
from labkit.client.text_model import Input, TextModel


def text_model(*sampling: str, by_parameter: bool = False, end: bool = False) -> TextModel:
    """A model with these sampling inputs; ``by_parameter``: as lab 02's, without any."""
    inputs = {"text": Input("text", "BYTES", (1, 1))} | ({} if by_parameter else {"n": Input("n", "UINT32", (1, 1))})
    kinds = {name: Input(name, "UINT64" if name in ("seed", "top_k") else "FP32", (1, 1)) for name in sampling}
    return TextModel(
        "m",
        inputs,
        "text",
        "" if by_parameter else "n",
        "out",
        True,
        kinds,
        Input("end_id", "UINT32", (1, 1)) if end else None,
    )


def response(final: bool = False, **outputs: str | bytes) -> service_pb2.ModelStreamInferResponse:
    """A response of a stream with these texts, each by the name of its tensor."""
    made = service_pb2.ModelStreamInferResponse()
    made.infer_response.parameters[FINAL].bool_param = final
    for name, text in outputs.items():
        raw = text if isinstance(text, bytes) else text.encode()
        made.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1])
        made.infer_response.raw_output_contents.append(len(raw).to_bytes(4, "little") + raw)
    return made


class Scripted:
    """A Triton that has these responses to every request, in place of the channel (``labdoor.triton.Triton``).

    Attributes:
        asked: the requests that reached it.
        ended: their ids, each when its responses were all taken or given up.
    """

    def __init__(self, script: Sequence[service_pb2.ModelStreamInferResponse], forever: bool = False) -> None:
        self.script, self.forever = script, forever
        self.asked: list[Any] = []
        self.ended: list[str] = []

    async def responses(self, model: Model, request: Any, headers: Any) -> AsyncIterator[tuple[Any, bool]]:
        self.asked.append(request)
        try:
            for one in self.script:
                yield one.infer_response, one.infer_response.parameters[FINAL].bool_param
                await asyncio.sleep(0)
            if self.forever:
                await asyncio.Event().wait()
        finally:
            self.ended.append(request.id)

    async def close(self) -> None:
        return


class Played(service_pb2_grpc.GRPCInferenceServiceServicer):
    """A server of gRPC whose answers never end but when they are cancelled.

    Attributes:
        size: bytes of each of its responses.
        sent: how many responses gRPC has taken from it.
        asked: requests that are being answered.
        said: the metadata of the last one.
        stopped: the ids that a model was told to stop.
    """

    def __init__(self, size: int = 1) -> None:
        self.size, self.sent, self.asked = size, 0, 0
        self.said: Mapping[str, Any] = {}
        self.stopped: list[str] = []

    async def ModelConfig(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelConfigResponse()

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self.said = dict(context.invocation_metadata())
        async for request in requests:
            if any(tensor.name == "stop" for tensor in request.inputs):
                self.stopped.append(request.id)
                yield response(True)
                return
            break
        self.asked += 1
        try:
            while True:
                yield response(out=b"x" * self.size)
                self.sent += 1
                await asyncio.sleep(0)
        finally:
            self.asked -= 1

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        self.said = dict(context.invocation_metadata())
        self.asked += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.asked -= 1


@contextlib.asynccontextmanager
async def playing(played: Played, address: str = "127.0.0.1:0") -> AsyncIterator[tuple[str, grpc.aio.Server]]:
    """The endpoint of a played server, and the server."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", 2 * MOST_MESSAGE)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(played, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def door_before(endpoint: str, model: Model) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an API that listens, in this loop, before the server at ``endpoint``."""
    server = uvicorn.Server(uvicorn_config(app.make_app(endpoint, {model.name: model}), "127.0.0.1", 0))
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = server.force_exit = True
        await serving


async def until(there: Callable[[], Any], seconds: float = 20) -> None:
    """Wait for what happens in this loop. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while not there():
            await asyncio.sleep(0.01)


@contextlib.contextmanager
def listening(config: uvicorn.Config) -> Iterator[tuple[str, int]]:
    """Where a server with that configuration listens, in a thread."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
