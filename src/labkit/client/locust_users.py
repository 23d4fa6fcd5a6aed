"""Users for Locust that ask a Triton model over HTTP or gRPC, each as soon as its last answer has come.

Importing this module patches the standard library for gevent, as Locust wants it: only a process that generates load
imports it, and before anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

import gevent
import grpc.experimental.gevent
import tritonclient.http as httpclient
from geventhttpclient import HTTPClient
from locust import User, task  # patches the standard library

from labkit.client.ask import channel_options
from labkit.client.message import Tensor, infer_request

grpc.experimental.gevent.init_gevent()

TIMEOUT_S = 120.0
#: (input class, output class) → the inputs and the outputs wanted of one request; the same for both protocols.
Payload = Callable[[Any, Any], tuple[Sequence[Any], Sequence[Any]]]


class _TritonUser(User):  # type: ignore[misc]
    """Asks one model again and again. Subclasses say `model` and `payloads`.

    What is sent is made once and sent often, and answers are not looked into: the load generator sits on the same
    machine as the server, and what it takes is missing there.
    """

    abstract = True
    model: ClassVar[str]
    payloads: ClassVar[Sequence[Payload]]
    protocol: ClassVar[str]

    def on_start(self) -> None:
        self.connect()
        self._ready = [self.prepare(payload) for payload in self.payloads]
        self._sent = 0

    def connect(self) -> None:
        raise NotImplementedError

    def prepare(self, payload: Payload) -> Any:
        """The request in the form that `send` takes."""
        raise NotImplementedError

    def send(self, request: Any) -> int:
        """Ask and wait for the answer; its length in bytes. Raises what went wrong, in Triton's words."""
        raise NotImplementedError

    @task  # type: ignore[untyped-decorator]
    def infer(self) -> None:
        request = self._ready[self._sent % len(self._ready)]
        self._sent += 1
        began = time.perf_counter()
        length, error = 0, None
        try:
            length = self.send(request)
        except Exception as problem:  # Locust books it as a failure
            error = problem
        self.environment.events.request.fire(
            request_type=self.protocol,
            name=self.model,
            response_time=(time.perf_counter() - began) * 1e3,
            response_length=length,
            exception=error,
            context={},
        )


class TritonHttpUser(_TritonUser):
    """Binary tensors over HTTP; `host` is a URL. Half of what Locust's own FastHttpUser takes for a request."""

    abstract = True
    protocol = "HTTP"

    def connect(self) -> None:
        url = urlsplit(self.host)
        self._client = HTTPClient(
            url.hostname or "", url.port, concurrency=1, connection_timeout=TIMEOUT_S, network_timeout=TIMEOUT_S
        )

    def on_stop(self) -> None:
        self._client.close()

    def prepare(self, payload: Payload) -> tuple[bytes, dict[str, str]]:
        inputs, outputs = payload(httpclient.InferInput, httpclient.InferRequestedOutput)
        body, length = httpclient.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
        headers = {"Content-Type": "application/octet-stream"}
        return body, headers | ({"Inference-Header-Content-Length": str(length)} if length else {})

    def send(self, request: tuple[bytes, dict[str, str]]) -> int:
        body, headers = request
        response = self._client.post(f"/v2/models/{self.model}/infer", body=body, headers=headers)
        answer = response.read()
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}: {answer[:300].decode(errors='replace')}")
        return len(answer)


class TritonGrpcUser(_TritonUser):
    """The same over gRPC; `host` is ``host:port``."""

    abstract = True
    protocol = "gRPC"

    def connect(self) -> None:
        # Each waiting call holds a thread of gevent's pool. If the pool has fewer threads than calls, another call (or
        # the look-up of an address) waits for an answer that is not its own.
        gevent.get_hub().threadpool.maxsize += 1
        self._channel = grpc.insecure_channel(self.host, options=channel_options(self.host))
        # No serializers: bytes go out and come in as they are.
        self._infer = self._channel.unary_unary("/inference.GRPCInferenceService/ModelInfer", None, None)

    def on_stop(self) -> None:
        self._channel.close()
        gevent.get_hub().threadpool.maxsize -= 1

    def prepare(self, payload: Payload) -> bytes:
        inputs, outputs = payload(Tensor, str)
        message: bytes = infer_request(self.model, inputs, outputs).SerializeToString()
        return message

    def send(self, request: bytes) -> int:
        return len(self._infer(request, timeout=TIMEOUT_S))
