"""The door's one gRPC channel to Triton, and one request on it.

Each request is an HTTP/2 stream of that channel. Responses are taken from it one by one, each when the client has taken
the one before: nothing is queued here. What a slow client leaves, HTTP/2's flow control leaves in Triton, which does
not hold the engine back; there the length of the answer bounds it. A client that takes nothing for too long is given
up, and its request cancelled (``labdoor.exchange``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from labdoor import errors
from labdoor.logprobs import Scored, Scores
from labdoor.models import Model
from labdoor.requests import Asked
from labdoor.stops import Scanner
from labkit.clients import stop
from labkit.clients.base import in_turn

FINAL = "triton_final_response"


@dataclass(frozen=True)
class Standing:
    """What a request's headers say of it.

    Attributes:
        id: its name at Triton, in the step logs and in the answer.
        priority: 1 is the highest; 0: it has none.
        tenant: for whom it is; "" for nobody.
        timeout: seconds until the answer must be whole.
        headers: passed on to Triton as they are (W3C trace context).
    """

    id: str
    priority: int = 0
    tenant: str = ""
    timeout: float = 600.0
    queue_timeout: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


class Triton:
    """The server at ``endpoint`` (gRPC, ``host:port``)."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.client = InferenceServerClient(endpoint, channel_args=in_turn(endpoint))
        self._stopping: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        await asyncio.gather(*self._stopping, return_exceptions=True)
        await self.client.close()

    async def ready(self, models: Mapping[str, Model]) -> bool:
        """Whether the server and all of these models are ready."""
        with contextlib.suppress(InferenceServerException, grpc.RpcError):
            if await self.client.is_server_ready(client_timeout=2):
                return all([await self.client.is_model_ready(name, client_timeout=2) for name in models])
        return False

    def forget(self, model: Model, id: str) -> None:
        """End a request whose client has gone, inside an ensemble: Triton tells no model there (server#6739)."""
        task = asyncio.create_task(asyncio.to_thread(stop.stop, self._endpoint, model.stopper, id))
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)


class Generation:
    """One answer of one model.

    Attributes:
        tokens: how many it has so far.
        finish_reason: OpenAI's word for why it ended; "" while it has not.
        scored: the tokens of the newest piece, where their log probabilities were asked for.
    """

    def __init__(
        self,
        triton: Triton,
        model: Model,
        prompt: str,
        limit: int,
        asked: Asked,
        standing: Standing,
        choice: int,
        stops: list[str],
    ) -> None:
        self._triton, self._model, self._prompt, self._limit = triton, model, prompt, limit
        self._scanner = Scanner(stops)
        self._scores = Scores(asked.rivals) if asked.rivals is not None else None
        self.scored: list[Scored] = []
        inputs, parameters = model.wire(prompt, limit, asked, choice)
        if model.stopper or not model.text.by_parameter:
            parameters |= {"tenant": standing.tenant} if standing.tenant else {}
            parameters |= {"request_priority": standing.priority} if standing.priority else {}
        self._id = standing.id if not choice else f"{standing.id}{choice:02}"
        self._headers = dict(standing.headers) or None
        self._request: dict[str, Any] = {
            "model_name": model.name,
            "inputs": inputs,
            "request_id": self._id,
            "priority": standing.priority,
            "parameters": parameters or None,
        }
        if standing.queue_timeout:
            self._request["timeout"] = int(standing.timeout * 1e6)
        self.tokens, self.finish_reason = 0, ""

    async def pieces(self) -> AsyncGenerator[str, None]:
        """The new text as it comes, up to a stop string; texts may be empty. Closing it cancels the request.

        Raises:
            Refusal: Triton's error, or Triton is away.
        """
        try:
            pieces = self._streamed() if self._model.text.decoupled else self._whole()
            async with contextlib.aclosing(pieces) as texts:
                given = 0
                async for text in texts:
                    piece = self._scanner.add(text)
                    given += len(piece)
                    self._score(given)
                    yield piece
                    if self._scanner.found:
                        break
                else:
                    if rest := self._scanner.add("", last=True):
                        self._score(given + len(rest))
                        yield rest
        except grpc.aio.AioRpcError as error:
            raise errors.of_triton(str(error.details()), f"StatusCode.{error.code().name}") from None
        except InferenceServerException as error:
            raise errors.of_triton(str(error.message()), error.status()) from None
        full = self.tokens >= self._limit and not self._scanner.found
        self.finish_reason = "length" if full else "stop"

    def _score(self, given: int) -> None:
        if self._scores:
            self.scored = self._scores.take(given, self._scanner.found)

    async def _streamed(self) -> AsyncGenerator[str, None]:
        async def one() -> AsyncIterator[dict[str, Any]]:
            yield self._request

        text_model, so_far, done = self._model.text, "", False
        call = self._triton.client.stream_infer(one(), headers=self._headers)
        try:
            async for result, error in call:
                if error is not None:
                    done = True
                    raise error
                response = result.get_response()
                final = FINAL in response.parameters and response.parameters[FINAL].bool_param
                values = result.as_numpy(text_model.output)
                text = ""
                if values is not None and values.size:
                    self.tokens += 1
                    text = values.reshape(-1)[0].decode(errors="replace")
                    if text_model.so_far:  # all of it so far; half a character at its end waits for its other half
                        whole = text if final else text.rstrip("\N{REPLACEMENT CHARACTER}")
                        text, so_far = whole[len(so_far) :], whole
                if self._scores and (output := result.as_numpy(text_model.logprobs)) is not None:
                    self._scores.add(text, output.reshape(-1)[0].decode())
                done = final
                yield text
                if final:
                    break
            done = True
        finally:
            if not done:
                if self._model.stopper:
                    self._triton.forget(self._model, self._id)
                call.cancel()

    async def _whole(self) -> AsyncGenerator[str, None]:
        model, done = self._model, False
        try:
            result = await self._triton.client.infer(**self._request, headers=self._headers)
            done = True
        finally:
            if not done and model.stopper:
                self._triton.forget(model, self._id)
        text = result.as_numpy(model.text.output).reshape(-1)[0].decode(errors="replace")
        if model.text.end_text:
            text = text.partition(model.text.end_text)[0]
        text = text if model.text.answers_alone else text.removeprefix(self._prompt)
        # A text that is read again may have fewer tokens than were generated, never more than were asked for.
        self.tokens = min(self._limit, model.words.count(text, special=False))
        yield text
