"""A text model as the OpenAI API knows it, what Triton answers for it, and a server of the API."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from tritonclient.grpc import service_pb2
from waiting import eventually

from labdoor.triton import FINAL
from labkit.clients.text_model import Input, TextModel


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


@contextlib.contextmanager
def listening(config: uvicorn.Config, bound: socket.socket | None = None) -> Iterator[tuple[str, int]]:
    """Where a server with that configuration listens, in a thread: on ``bound``, or on a socket of its own."""
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([bound] if bound else None,))
    thread.start()
    try:
        eventually(lambda: server.started)
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join(20)
