"""The judge beside Envoy: ``python -m labguard.judge unix:SOCKET TRITON``. It is shown every request before Triton.

An HTTP request is shown whole (Envoy has buffered, bounded and decompressed it). A gRPC stream is never buffered: it is
shown in pieces as they come, a message passes as soon as it is whole, and answers flow meanwhile.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from labguard import PROCESS_NAME
from labguard.models import Models
from labguard.requests import GRPC, GrpcCall, HttpRequest
from labguard.rules import LISTENER, MAX_REQUEST, Refused
from labguard.sequences import Sequences
from labguard.wire import METHOD, ProcessingRequest, ProcessingResponse

PR_SET_NAME = 15
KINDS: dict[str, type[HttpRequest | GrpcCall]] = {"http": HttpRequest, "grpc": GrpcCall}
CODES = {
    403: grpc.StatusCode.PERMISSION_DENIED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


class Judge:
    """Judges what Envoy shows it. ``models`` and ``sequences`` know what no request says."""

    def __init__(self, models: Models, sequences: Sequences) -> None:
        self._known = models, sequences

    async def process(self, shown: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        """One HTTP request or gRPC call; Envoy waits for an answer to each message."""
        kind = KINDS[dict(context.invocation_metadata())[LISTENER]]
        request: HttpRequest | GrpcCall | None = None
        headers: dict[str, str] = {}
        async for message in shown:
            answer = ProcessingResponse()
            what = message.ListFields()[0][0].name
            try:
                if what == "request_headers":
                    headers = _headers(message.request_headers)
                    request = kind(headers, *self._known)
                    answer.request_headers.SetInParent()
                elif what == "request_body" and request:
                    body = message.request_body
                    passed = await request.pass_on(body.body, body.end_of_stream)
                    answer.request_body.SetInParent()
                    if not passed:
                        answer.request_body.response.body_mutation.clear_body = True
                    elif passed != body.body:
                        answer.request_body.response.body_mutation.body = passed
                else:
                    answer.request_trailers.SetInParent()
            except Refused as error:
                yield _refusal(error, kind is GrpcCall and bool(GRPC.fullmatch(headers.get("content-type", ""))))
                return
            yield answer


def _headers(shown: Any) -> dict[str, str]:
    """By name, in lower case as Envoy gives them; one that comes twice is joined, and then is no number."""
    joined: dict[str, str] = {}
    for header in shown.headers.headers:
        value = header.raw_value.decode("latin-1") or header.value
        joined[header.key] = f"{joined[header.key]},{value}" if header.key in joined else value
    return joined


def _refusal(error: Refused, grpc_call: bool) -> Any:
    answer = ProcessingResponse()
    refusal = answer.immediate_response
    refusal.details = "refused_by_the_guard"
    if grpc_call:
        refusal.status.code = 200
        refusal.grpc_status.status = CODES.get(error.status, grpc.StatusCode.INVALID_ARGUMENT).value[0]
        refusal.body = str(error).encode()
    else:
        refusal.status.code = error.status
        refusal.body = json.dumps({"error": str(error)}).encode()
        header = refusal.headers.set_headers.add().header
        header.key, header.raw_value = "content-type", b"application/json"
    return answer


async def serve(address: str, triton: str) -> None:
    """Judge until SIGTERM. ``triton`` is HOST:PORT of its HTTP service, which may be what Envoy itself listens on."""
    server = grpc.aio.server(
        options=[
            ("grpc.max_receive_message_length", MAX_REQUEST + 2**16),
            ("grpc.max_send_message_length", MAX_REQUEST + 2**16),
        ]
    )
    service, method = METHOD.strip("/").split("/")
    models = Models(triton)
    handler = grpc.stream_stream_rpc_method_handler(
        Judge(models, Sequences(models)).process,
        request_deserializer=ProcessingRequest.FromString,
        response_serializer=ProcessingResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    os.umask(0o177)  # of a socket in the file system: its owner's alone
    server.add_insecure_port(address)
    await server.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: asyncio.ensure_future(server.stop(0)))
    await server.wait_for_termination()


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_NAME, PROCESS_NAME.encode())
    asyncio.run(serve(*sys.argv[1:]))
