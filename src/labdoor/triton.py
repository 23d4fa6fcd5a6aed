"""The door's one gRPC channel to Triton.

Each request is a call of its own, with the deadline of its answer: Triton gives up what is not whole by then. Responses
are taken from it one by one, each when the client has taken the one before: nothing is queued here but what HTTP/2's
flow control lets through (``WINDOW``). What a slow client leaves stays in Triton, which does not hold the engine back;
there the length of the answer bounds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from labdoor import errors
from labdoor.models import Model
from labdoor.requests import RequestHeaders
from labkit.client import stop
from labkit.client.ask import channel_options

READY_S = 2.0
FINAL = "triton_final_response"
EMPTY_FINAL = "triton_enable_empty_final_response"  # each stream has a final response: one without it was cut
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
MOST_MESSAGE = 16 * 2**20  # bytes: a body's text with room to spare
WINDOW = 64 * 2**10  # bytes of one call that are read before they are taken
OPTIONS = {
    "grpc.enable_http_proxy": 0,  # the server is the stack's own: no proxy of this machine's leads to it
    "grpc.max_send_message_length": MOST_MESSAGE,
    "grpc.max_receive_message_length": MOST_MESSAGE,
    "grpc.http2.lookahead_bytes": WINDOW,
    "grpc.http2.bdp_probe": 0,  # else the window grows to megabytes
    "grpc.keepalive_time_ms": 310_000,  # Triton closes a connection with more than a ping in 300 s
    "grpc.keepalive_timeout_ms": 20_000,
    "grpc.max_reconnect_backoff_ms": 1_000,  # a server that is back is found at once
    "grpc.dns_min_time_between_resolutions_ms": 1_000,
}
#: A response's tensors, and whether it is the last.
Response = tuple[service_pb2.ModelInferResponse, bool]


class Triton:
    """The server at ``endpoint`` (gRPC). It belongs to the event loop that makes it."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        options = {**dict(channel_options(endpoint)), **OPTIONS}
        self._channel = grpc.aio.insecure_channel(endpoint, options=list(options.items()))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        # One request a call: Triton's method takes a stream of them.
        self._stream = self._channel.unary_stream(
            STREAM,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self._stopping: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await asyncio.gather(*self._stopping, return_exceptions=True)
        await self._channel.close()

    async def ready(self, models: Iterable[str]) -> bool:
        """Whether the server and all of these models are ready."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            if (await self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=READY_S)).ready:
                for name in models:
                    request = service_pb2.ModelReadyRequest(name=name)
                    if not (await self._stub.ModelReady(request, timeout=READY_S)).ready:
                        return False
                return True
        return False

    async def responses(
        self, model: Model, request: service_pb2.ModelInferRequest, headers: RequestHeaders
    ) -> AsyncGenerator[Response, None]:
        """Send one request; its responses as they come. Closing the generator cancels it.

        Raises:
            ApiError: Triton's error, Triton is away, or the stream ended before its final response.
        """
        send = self._stream if model.text.decoupled else self._stub.ModelInfer
        call = send(request, metadata=tuple(headers.trace.items()), timeout=headers.timeout_s)
        done = False
        try:
            if not model.text.decoupled:
                response = await call
                done = True
                yield response, True
                return
            async for message in call:
                if message.error_message:
                    done = True
                    raise errors.of_triton(message.error_message, None)
                response = message.infer_response
                done = FINAL in response.parameters and response.parameters[FINAL].bool_param
                yield response, done
                if done:
                    return
            raise errors.triton_gone_error("the answer was cut off before its end")
        except grpc.aio.AioRpcError as error:
            raise errors.of_triton(error.details() or "", str(error.code())) from None
        finally:
            if not done:
                call.cancel()
                if model.stopper:  # the request is inside an ensemble: Triton does not pass it on (server#6739)
                    self._stop(model.stopper, request.id)

    def _stop(self, stopper: str, id: str) -> None:
        task = asyncio.create_task(asyncio.to_thread(stop.stop_request, self._endpoint, stopper, id))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


def first_text(response: service_pb2.ModelInferResponse, name: str) -> bytes | None:
    """The first element of a response's BYTES tensor, which its length precedes; None: the tensor is absent or empty.

    Triton has the tensors' contents beside their names, in the same order (``raw_output_contents``).
    """
    for place, output in enumerate(response.outputs):
        if output.name == name:
            raw = response.raw_output_contents[place]
            return raw[4 : 4 + int.from_bytes(raw[:4], "little")] if raw else None
    return None
