"""The base of all clients: a connection for the time of a block, and a record for each request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

import tritonclient.grpc as grpcclient

from labkit import proxies
from labkit.errors import LabError
from labkit.records import RequestRecord, request_id

GONE = "StatusCode.UNAVAILABLE"  # the status of gRPC's own error when the server no longer answers
TELL_S = 0.2
ASK_S = 30.0  # for a model's configuration: the server computes nothing for it
Tell = Callable[[int, int], None]
SEQUENCE = "x-sequence-id"  # the header by which a balancer keeps a sequence on one replica (docs/operate/scale.md)
STALLED = "labctl status shows whether the stack is stalled"


def connect(endpoint: str) -> Any:
    """A gRPC client of ``host:port``, or of several addresses in gRPC's own words ("ipv4:a:1,b:2", "dns:///name:1").

    Those get its requests in turn, and one that has gone gets none.
    """
    return grpcclient.InferenceServerClient(endpoint, channel_args=channel_options(endpoint))


def channel_options(endpoint: str) -> list[tuple[str, Any]]:
    """The arguments of a gRPC channel to ``endpoint``: messages as large as they come, loopback through no proxy."""
    options: dict[str, Any] = {
        "grpc.max_send_message_length": grpcclient.MAX_GRPC_MESSAGE_SIZE,
        "grpc.max_receive_message_length": grpcclient.MAX_GRPC_MESSAGE_SIZE,
    }
    if ":///" in endpoint or endpoint.startswith("ipv4:"):
        options["grpc.lb_policy_name"] = "round_robin"
    if not proxies.for_grpc(endpoint):
        options["grpc.enable_http_proxy"] = 0
    return list(options.items())


class Silence:
    """How long an answer may bring nothing new. While ``standing`` is true time does not count: a clock is stopped."""

    def __init__(self, seconds: float, standing: Callable[[], bool] = bool) -> None:
        self._seconds, self._standing = seconds, standing
        self._responses, self._since = 0, time.monotonic()

    def check(self, responses: int) -> None:
        """Take note of how many responses have come. Raises LabError: no other one came for too long."""
        now = time.monotonic()
        if responses > self._responses or self._standing():
            self._responses, self._since = responses, now
        elif now - self._since > self._seconds:
            raise LabError(f"no token came for {self._seconds:g} s", "", STALLED, code="token-late")


class Client:
    """A connection to one server. Use as a context manager: leaving it closes the connection."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()


class InFlightClient(Client):
    """Any number of requests at once over gRPC; the answers arrive in threads of the client's library.

    A subclass says how a request is handed over, and calls ``_end`` when it is answered.
    """

    def __init__(self, endpoint: str) -> None:
        super().__init__(connect(endpoint))
        self._changed = threading.Condition()
        self._open: dict[str, RequestRecord] = {}
        self._outputs: dict[str, str] = {}
        self._broken = ""
        self._refused = ""
        self._count = 0

    def send_inputs(
        self,
        model: str,
        prompt: str,
        inputs: list[Any],
        output: str = "text_output",
        tokens: int = 0,
        input_tokens: int = 0,
        id: str = "",
        priority: int = 0,
        **parameters: Any,
    ) -> RequestRecord:
        """Send one request and return its record, which fills as responses arrive.

        Args:
            prompt: only the record's name for the inputs.
            output: which output tensor holds the answer.
            tokens: how many tokens the answer will have where one response holds it all.
            input_tokens: how many the prompt has, where that is known.
            id: the request's, one of ``request_id``; "": a new one.
            priority: 1 is the highest; 0 leaves it to the model.
            parameters: of the request.
        """
        with self._changed:
            self._count += 1
            label = f"{model}-{self._count}"
            record = RequestRecord(label, model, prompt, parameters, id=id or request_id())
            record.tokens, record.input_tokens = tokens, input_tokens
            self._open[record.id], self._outputs[record.id] = record, output
        record.start = time.monotonic()
        self._hand_over(record, inputs, priority)
        return record

    def wait(self, *records: RequestRecord, timeout: float, tell: Tell | None = None) -> None:
        """Return when all of ``records`` have ended.

        Args:
            timeout: seconds.
            tell: called a few times a second with how many have ended, and of how many.

        Raises:
            LabError: a request failed, the connection broke, or the time is over.
        """
        deadline = time.monotonic() + timeout
        done = False
        while not done and (left := deadline - time.monotonic()) >= 0:
            with self._changed:
                done = self._changed.wait_for(
                    lambda: self._over or all(record.end for record in records), min(left, TELL_S)
                )
            if tell:
                tell(sum(record.end > 0 for record in records), len(records))
        failed = next((record for record in records if record.error), None)
        if failed:
            raise LabError(
                f"{failed.model} answered with an error", failed.error, _other_type(failed.error), code="model-error"
            )
        self.check()
        if not done:
            waiting = sum(not record.end for record in records)
            raise LabError(
                f"{waiting} of {len(records)} requests had not ended within {timeout:g} s",
                "",
                STALLED,
                code="requests-unended",
            )

    def ended(self, record: RequestRecord, timeout: float) -> bool:
        """Whether ``record`` has ended, well or badly, or can no longer; waits for it up to ``timeout`` seconds."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._over or record.end, timeout=timeout))

    def check(self) -> None:
        """Raise LabError if the connection is broken, or the server refused a request without saying which."""
        with self._changed:
            if self._broken:
                raise LabError(
                    "the connection to the server broke",
                    self._broken,
                    "labctl status says whether it is up",
                    code="connection-broken",
                )
            if self._refused:
                raise LabError("the server answered a request with an error", self._refused, code="request-refused")

    @property
    def _over(self) -> bool:
        """Whether the connection is unusable: answers can no longer be matched with requests."""
        return bool(self._broken or self._refused)

    def _hand_over(self, record: RequestRecord, inputs: list[Any], priority: int) -> None:
        raise NotImplementedError

    def give_up(self, record: RequestRecord, error: str) -> None:
        """End a request from here, unless it has ended; what still comes of it is not kept."""
        with self._changed:
            if not record.end:
                self._end(record, time.monotonic(), error)

    def _end(self, record: RequestRecord, at: float, error: str = "") -> None:
        """``record`` is answered for good; only with ``_changed`` held. Its end, which others look at, is set last."""
        del self._open[record.id], self._outputs[record.id]
        record.error = error
        record.end = at
        self._changed.notify_all()


def finish_reason(result: Any) -> str:
    """Why an answer ended, where the model has such an output and was asked for it."""
    reasons = result.as_numpy("finish_reason")
    return str(reasons.reshape(-1)[0].decode(errors="replace")) if reasons is not None and reasons.size else ""


def grpc_server_version(endpoint: str) -> str:
    """Triton's version, as the server at ``endpoint`` (gRPC) says."""
    with connect(endpoint) as client:
        return str(client.get_server_metadata(client_timeout=ASK_S).version)


def _other_type(error: str) -> str:
    """A remedy if a client sends another model's integer types; "" if that is not the error."""
    if "UINT32" not in error or "INT32" not in error.replace("UINT32", ""):
        return ""
    return "send the type of the model's metadata: the labs' own models take UINT32, TensorRT-LLM INT32"
