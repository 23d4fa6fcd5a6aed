"""The judge beside Envoy: ``python -m labctl.guard.judge unix:SOCKET TRITON``. It is shown every request before Triton.

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

from labctl.guard import PROCESS_NAME
from labctl.guard.grpc_messages import MessageStream
from labctl.guard.rules import MAX_REQUEST, Refused, check_json
from labctl.guard.sequences import Sequences
from labctl.guard.wire import METHOD, ProcessingRequest, ProcessingResponse

PR_SET_NAME = 15
LARGE = 2**18  # bytes; judging more than that does not hold up the others
LENGTH, ENCODING = "inference-header-content-length", "content-encoding"


class Judge:
    """Judges what Envoy shows it."""

    def __init__(self, sequences: Sequences) -> None:
        self._sequences = sequences

    async def process(self, requests: AsyncIterator[Any], _: Any) -> AsyncIterator[Any]:
        """One HTTP request or gRPC call; Envoy waits for an answer to each message."""
        headers: dict[str, str] = {}
        stream: MessageStream | None = None
        async for message in requests:
            answer = ProcessingResponse()
            kind = message.ListFields()[0][0].name
            try:
                if kind == "request_headers":
                    headers = _headers(message.request_headers)
                    if headers.get("content-type", "").startswith("application/grpc"):
                        stream = MessageStream(headers[":path"], headers.get("grpc-encoding", ""))
                    elif ENCODING in headers:
                        raise Refused(
                            f"the guard takes bodies compressed with gzip alone, not with '{headers[ENCODING]}'"
                        )
                    answer.request_headers.SetInParent()
                elif kind == "request_body" and stream:
                    body = message.request_body
                    passed = stream.pass_on(body.body, body.end_of_stream)
                    for request in stream.judged:
                        await self._sequences.check_grpc(request)
                    mutation = answer.request_body.response.body_mutation
                    if passed:
                        mutation.body = passed
                    else:
                        mutation.clear_body = True
                elif kind == "request_body":
                    body = message.request_body.body
                    if len(body) > LARGE:
                        document = await asyncio.to_thread(check_json, body, headers.get(LENGTH))
                    else:
                        document = check_json(body, headers.get(LENGTH))
                    await self._sequences.check_http(headers[":path"], document)
                    answer.request_body.SetInParent()
                else:
                    answer.request_trailers.SetInParent()
            except Refused as error:
                yield _refusal(error, stream is not None)
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
        status = grpc.StatusCode.RESOURCE_EXHAUSTED if error.too_large else grpc.StatusCode.INVALID_ARGUMENT
        refusal.status.code = 200
        refusal.grpc_status.status = status.value[0]
        refusal.body = str(error).encode()
    else:
        refusal.status.code = 413 if error.too_large else 400
        refusal.body = json.dumps({"error": str(error)}).encode()
        header = refusal.headers.set_headers.add().header
        header.key, header.raw_value = "content-type", b"application/json"
    return answer


async def serve(address: str, triton: str) -> None:
    """Judge until SIGTERM. ``triton`` is HOST:PORT of its HTTP service, which may be what Envoy itself listens on."""
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", MAX_REQUEST + 2**16),
                                      ("grpc.max_send_message_length", MAX_REQUEST + 2**16)])  # fmt: skip
    service, method = METHOD.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(
        Judge(Sequences(triton)).process,
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
