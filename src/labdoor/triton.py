"""The door's one gRPC channel to Triton, and one request on it.

Each request is a call of its own. Responses are taken from it one by one, each when the client has taken the one
before: nothing is queued here but what HTTP/2's flow control lets through (``WINDOW``). What a slow client leaves
stays in Triton, which does not hold the engine back; there the length of the answer bounds it. A client that takes
nothing for too long is given up, and its request cancelled (``labdoor.exchange``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import grpc
from tritonclient.grpc import InferResult, service_pb2, service_pb2_grpc

from labdoor import errors
from labdoor.logprobs import ScoredToken, Scores
from labdoor.models import Model
from labdoor.requests import CommonRequest
from labdoor.stops import Scanner
from labkit.clients import stop
from labkit.clients.base import channel_options
from labkit.clients.message import infer_request
from labkit.records import request_id

Ends = Literal["stop", "length"]
READY_S = 2.0
FINAL = "triton_final_response"
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


@dataclass(frozen=True)
class RequestHeaders:
    """A request's settings from its headers.

    Attributes:
        id: the client's own name for it, for people: several requests may have the same; "" for none.
        number: the door's, which no other request has.
        priority: 1 is the highest; 0: it has none.
        tenant: the user or customer; "" for none.
        timeout: seconds until the answer must be whole.
        queue_timeout: whether Triton gets the timeout too, for its queue: the client has set it.
        headers: passed on to Triton as they are (W3C trace context).
    """

    id: str = ""
    priority: int = 0
    tenant: str = ""
    timeout: float = 600.0
    queue_timeout: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    number: str = field(default_factory=request_id)

    @property
    def name(self) -> str:
        """Its name in the answer."""
        return self.id or self.number

    def triton_id(self, choice: int) -> str:
        """The id at Triton of one of its choices, by which the engine stops it: no other request may have it.

        The number comes first, because TensorRT-LLM's backend reads the digits that an id begins with.
        """
        number = request_id() if choice else self.number
        return f"{number}:{self.id}" if self.id else number


class Triton:
    """The server at ``endpoint`` (gRPC)."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        options = {**dict(channel_options(endpoint)), **OPTIONS}
        self._channel = grpc.aio.insecure_channel(endpoint, options=list(options.items()))
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._stream = self._channel.unary_stream(
            STREAM,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )
        self._stopping: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await asyncio.gather(*self._stopping, return_exceptions=True)
        await self._channel.close()

    async def ready(self, models: Mapping[str, Model]) -> bool:
        """Whether the server and all of these models are ready."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            if (await self._stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=READY_S)).ready:
                for name in models:
                    request = service_pb2.ModelReadyRequest(name=name)
                    if not (await self._stub.ModelReady(request, timeout=READY_S)).ready:
                        return False
                return True
        return False

    def stream(self, request: Any, metadata: Mapping[str, str]) -> Any:
        """Send one request; the call is an iterator over its responses. Triton's method takes a stream of requests."""
        return self._stream(request, metadata=tuple(metadata.items()))

    def whole(self, request: Any, metadata: Mapping[str, str]) -> Any:
        """Send one request to a model that is not decoupled; the call is awaited for its response."""
        return self._stub.ModelInfer(request, metadata=tuple(metadata.items()))

    def forget(self, model: Model, id: str) -> None:
        """End a request inside an ensemble whose client has gone: Triton does not pass it on (server#6739)."""
        task = asyncio.create_task(asyncio.to_thread(stop.stop_request, self._endpoint, model.stopper, id))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


class Generation:
    """One answer of one model.

    Attributes:
        tokens: how many it has so far.
        finish_reason: OpenAI's word for why it ended; None while it has not.
        scored: the tokens of the newest piece, where their log probabilities were asked for.
    """

    def __init__(
        self,
        triton: Triton,
        model: Model,
        prompt: str,
        limit: int,
        request: CommonRequest,
        headers: RequestHeaders,
        choice: int,
        stops: list[str],
    ) -> None:
        self._triton = triton
        self._model = model
        self._prompt = prompt
        self._limit = limit
        self._scanner = Scanner(stops)
        self._scores = Scores(request.rivals) if request.rivals is not None else None
        self.scored: list[ScoredToken] = []
        inputs, parameters = model.wire(prompt, limit, request, choice)
        if model.stopper or not model.text.by_parameter:
            if headers.tenant:
                parameters["tenant"] = headers.tenant
            if headers.priority:
                parameters["request_priority"] = headers.priority
        self._id = headers.triton_id(choice)
        self._metadata = headers.headers
        self._request = infer_request(model.name, inputs, id=self._id, parameters=parameters)
        if headers.priority:
            self._request.parameters["priority"].uint64_param = headers.priority
        if headers.queue_timeout:
            self._request.parameters["timeout"].int64_param = int(headers.timeout * 1e6)
        self.tokens = 0
        self.finish_reason: Ends | None = None

    async def pieces(self) -> AsyncGenerator[str, None]:
        """The new text as it comes, up to a stop string; texts may be empty. Closing it cancels the request.

        With the last text ``finish_reason`` is set.

        Raises:
            Refusal: Triton's error, or Triton is away.
        """
        given = 0
        try:
            texts = self._streamed() if self._model.text.decoupled else self._whole()
            async with contextlib.aclosing(texts):
                async for text, last in texts:
                    piece = self._scanner.add(text, last)
                    if self._scores:
                        given += len(piece)
                        self.scored = self._scores.take(given, self._scanner.found)
                    if last or self._scanner.found:
                        full = self.tokens >= self._limit and not self._scanner.found
                        self.finish_reason = "length" if full else "stop"
                    yield piece
                    if self.finish_reason:
                        break
        except grpc.aio.AioRpcError as error:
            raise errors.of_triton(error.details() or "", str(error.code())) from None

    async def _streamed(self) -> AsyncGenerator[tuple[str, bool], None]:
        """Each response's text, and whether it is the last."""
        model = self._model.text
        done = False
        call = self._triton.stream(self._request, self._metadata)
        try:
            async for response in call:
                if response.error_message:
                    done = True
                    raise errors.of_triton(response.error_message, None)
                result = response.infer_response
                done = FINAL in result.parameters and result.parameters[FINAL].bool_param
                text = ""
                if (output := first_text(result, model.output)) is not None:
                    self.tokens += 1
                    text = output.decode(errors="replace")
                if self._scores and (scores := InferResult(result).as_numpy(model.logprobs)) is not None:
                    self._scores.add(text, scores.reshape(-1)[0].decode())
                yield text, done
                if done:
                    return
            done = True
        finally:
            if not done:
                if self._model.stopper:
                    self._triton.forget(self._model, self._id)
                call.cancel()
        yield "", True

    async def _whole(self) -> AsyncGenerator[tuple[str, bool], None]:
        model = self._model
        done = False
        call = self._triton.whole(self._request, self._metadata)
        try:
            result = await call
            done = True
        finally:
            if not done:
                if model.stopper:
                    self._triton.forget(model, self._id)
                call.cancel()
        text = (first_text(result, model.text.output) or b"").decode(errors="replace")
        if model.text.end_text:
            text = text.partition(model.text.end_text)[0]
        if not model.text.answers_alone:
            text = text.removeprefix(self._prompt)
        # A text that is read again may have fewer tokens than were generated, never more than were asked for.
        self.tokens = min(self._limit, await model.words.count(text, special=False))
        yield text, True


def first_text(response: service_pb2.ModelInferResponse, name: str) -> bytes | None:
    """The first element of a response's BYTES tensor, which its length precedes; None: the tensor is absent or empty.

    Triton has the tensors' contents beside their names, in the same order (``raw_output_contents``).
    """
    for place, output in enumerate(response.outputs):
        if output.name == name:
            raw = response.raw_output_contents[place]
            return raw[4 : 4 + int.from_bytes(raw[:4], "little")] if raw else None
    return None
