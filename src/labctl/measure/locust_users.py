"""Users for Locust that ask a Triton model over HTTP or gRPC, each as soon as its last answer has come.

Importing this module patches the standard library for gevent, as Locust wants it: only a process that generates load
imports it, and before anything else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import grpc.experimental.gevent
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from locust import FastHttpUser, User, task  # patches the standard library
from tritonclient.grpc import service_pb2_grpc

grpc.experimental.gevent.init_gevent()

TIMEOUT_S = 120.0
#: (input class, output class) → the inputs and the outputs wanted of one request; the same for both protocols.
Payload = Callable[[Any, Any], tuple[Sequence[Any], Sequence[Any]]]


class TritonHttpUser(FastHttpUser):  # type: ignore[misc]
    """Binary tensors over HTTP. Subclasses say `model` and `payloads`; requests are made once and sent often."""

    abstract = True
    connection_timeout = network_timeout = TIMEOUT_S
    model: ClassVar[str]
    payloads: ClassVar[Sequence[Payload]]

    def on_start(self) -> None:
        self._bodies = [_http_body(payload) for payload in self.payloads]
        self._sent = 0

    @task  # type: ignore[untyped-decorator]
    def infer(self) -> None:
        body, headers = self._bodies[self._sent % len(self._bodies)]
        self._sent += 1
        # Locust counts a status of 400 or more as a failure, with Triton's own words in the body.
        with self.client.post(
            f"/v2/models/{self.model}/infer", data=body, headers=headers, name=self.model, catch_response=True
        ) as response:
            if response.status_code >= 400:
                response.failure(response.text[:300])


def _http_body(payload: Payload) -> tuple[bytes, dict[str, str]]:
    inputs, outputs = payload(httpclient.InferInput, httpclient.InferRequestedOutput)
    body, length = httpclient.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
    headers = {"Content-Type": "application/octet-stream"}
    return body, headers | ({"Inference-Header-Content-Length": str(length)} if length else {})


class TritonGrpcUser(User):  # type: ignore[misc]
    """The same over gRPC. `host` is ``host:port``."""

    abstract = True
    model: ClassVar[str]
    payloads: ClassVar[Sequence[Payload]]

    def on_start(self) -> None:
        self._channel = grpc.insecure_channel(self.host)
        self._infer = service_pb2_grpc.GRPCInferenceServiceStub(self._channel).ModelInfer
        self._requests = [_grpc_request(self.model, payload) for payload in self.payloads]
        self._sent = 0

    def on_stop(self) -> None:
        self._channel.close()

    @task  # type: ignore[untyped-decorator]
    def infer(self) -> None:
        request = self._requests[self._sent % len(self._requests)]
        self._sent += 1
        began = time.perf_counter()
        error: grpc.RpcError | None = None
        try:
            self._infer(request, timeout=TIMEOUT_S)
        except grpc.RpcError as problem:
            error = problem
        self.environment.events.request.fire(
            request_type="gRPC", name=self.model, response_time=(time.perf_counter() - began) * 1e3, response_length=0,
            exception=error, context={},
        )  # fmt: skip


def _grpc_request(model: str, payload: Payload) -> Any:
    from tritonclient.grpc._utils import _get_inference_request

    inputs, outputs = payload(grpcclient.InferInput, grpcclient.InferRequestedOutput)
    return _get_inference_request(
        model_name=model, inputs=inputs, model_version="", request_id="", outputs=outputs, sequence_id=0,
        sequence_start=False, sequence_end=False, priority=0, timeout=None, parameters=None,
    )  # fmt: skip
