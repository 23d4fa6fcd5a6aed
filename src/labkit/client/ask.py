"""Ask a model over gRPC: any number of requests at once, a record for each, one answer or a stream of responses."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from labkit import proxies
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord, request_id

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

    def so_far(self, record: RequestRecord, timeout: float) -> list[tuple[float, str]] | None:
        """The responses of an answer that goes on after ``timeout`` seconds; None where it has ended."""
        with self._changed:  # its last response and its end are one change
            ended = self._changed.wait_for(lambda: self._over or record.end, timeout=timeout)
            return None if ended else [*record.responses]

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


def tensor(name: str, value: Any, kind: type[Any]) -> Any:
    """An input of shape [1, n] for the n values given, or [1, 1] for the one value."""
    array = np.array([value if isinstance(value, list) else [value]], dtype=kind)
    filled = grpcclient.InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
    filled.set_data_from_numpy(array)
    return filled


def text_tensor(name: str, value: str, shape: Sequence[int] = (1, 1)) -> Any:
    """An input that holds one text."""
    filled = grpcclient.InferInput(name, list(shape), "BYTES")
    filled.set_data_from_numpy(np.array([value.encode()], dtype=np.object_).reshape(shape))
    return filled


def impossible_end_id(kind: type[Any]) -> Any:
    """An end id in which no answer ends: -1, in a type without signs its bits.

    It is in no vocabulary, and TensorRT-LLM takes it for "no end id" (``LlmRequest::validate`` refuses other ids that
    are in no vocabulary).
    """
    return np.array(-1).astype(kind)


@functools.cache
def kind_of(endpoint: str, model: str, name: str) -> type[Any]:
    """The numpy type of a model's input, as the running server says: releases of TensorRT-LLM differ in integers.

    Raises:
        LabError: the model has no such input, or it is a text.
    """
    with connect(endpoint) as client:
        datatypes = {item.name: item.datatype for item in client.get_model_metadata(model, client_timeout=ASK_S).inputs}
    if datatypes.get(name, "BYTES") == "BYTES":
        raise LabError(
            f"{model} has no input {name} of numbers", f"its inputs: {', '.join(datatypes)}", code="input-missing"
        )
    kind: type[Any] = triton_to_np_dtype(datatypes[name])
    return kind


class UnaryClient(InFlightClient):
    """One gRPC call for each request. Use as a context manager."""

    def _hand_over(self, record: RequestRecord, inputs: list[Any], priority: int) -> None:
        self._client.async_infer(
            record.model,
            inputs,
            functools.partial(self._answered, record),
            request_id=record.id,
            priority=priority,
            parameters=record.parameters,
        )

    def _answered(self, record: RequestRecord, result: Any, error: Any) -> None:
        """An answer in text, or in token ids of shape [1, beams, n], the prompt's in front."""
        now = time.monotonic()
        with self._changed:
            if record.end:
                return
            values: Any = None
            if error is None:
                try:
                    values = result.as_numpy(self._outputs[record.id])
                except Exception as unread:  # the library raises what its parsing of bytes raises
                    error = unread
                if values is None or not values.size:
                    error = error or f"its answer has no {self._outputs[record.id]}"
            if error is None:
                record.finish_reason = finish_reason(result)
                if values.dtype.kind == "O":
                    record.responses.append((now, values.reshape(-1)[0].decode(errors="replace")))
                else:
                    record.responses.append((now, ""))
                    record.tokens = values.shape[-1] - record.input_tokens
            self._end(record, now, "" if error is None else str(error))


OnToken = Callable[[RequestRecord], None]


class TextStream(InFlightClient):
    """One bidirectional gRPC stream to a server; any number of requests at once.

    Use as a context manager: leaving it cancels what is still running.

    Args:
        sequence: the correlation id of the one request that is sent to an iterative model; "": Triton chooses one.
    """

    def __init__(self, endpoint: str, on_token: OnToken | None = None, sequence: str = "") -> None:
        super().__init__(endpoint)
        self._sequence = {"sequence_id": sequence, "sequence_start": True} if sequence else {}
        self._on_token = on_token or (lambda record: None)

    def __enter__(self) -> Self:
        headers = {SEQUENCE: str(self._sequence["sequence_id"])} if self._sequence else None
        self._client.start_stream(callback=self._arrived, headers=headers)
        # tritonclient says nothing of a stream that its server ends in order: its thread, which reads it, is over then.
        # In a version that keeps it elsewhere, such a request ends at its deadline.
        if reading := getattr(getattr(self._client, "_stream", None), "_handler", None):
            threading.Thread(target=self._watch, args=(reading,), daemon=True).start()
        return self

    def _watch(self, reading: threading.Thread) -> None:
        """End the requests that are still open when ``reading`` is over: they get no answer."""
        reading.join()
        with self._changed:
            if self._open and not self._over:
                self._broken = "it ended the stream before all answers were whole"
                self._changed.notify_all()

    def __exit__(self, *exc: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        super().__exit__(*exc)

    def send(self, model: str, prompt: str, **parameters: Any) -> RequestRecord:
        """Send a text as ``text_input``; the rest as ``send_inputs`` does."""
        return self.send_inputs(model, prompt, [text_tensor("text_input", prompt)], **parameters)

    def wait_first(self, record: RequestRecord, timeout: float) -> None:
        """Return when the first response of ``record`` has come. ``timeout`` and errors as in ``wait``."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._over or record.end or record.responses, timeout=timeout)
        if not done:
            raise LabError(f"{record.model} had no first response within {timeout:g} s", "", STALLED, code="token-late")
        if not record.responses:
            self.wait(record, timeout=TELL_S)

    def _hand_over(self, record: RequestRecord, inputs: list[Any], priority: int) -> None:
        self._client.async_stream_infer(
            record.model,
            inputs,
            request_id=record.id,
            priority=priority,
            parameters=record.parameters,
            enable_empty_final_response=True,
            **self._sequence,
        )

    def _arrived(self, result: Any, error: Any) -> None:
        now = time.monotonic()
        with self._changed:
            if error is not None:
                self._failed(error, now)
                return
            response = result.get_response()
            record = self._open.get(response.id)
            if record is None:
                return
            final = response.parameters.get("triton_final_response")
            last = final is not None and final.bool_param
            try:
                values = result.as_numpy(self._outputs[record.id])
            except Exception as unread:  # the library raises what its parsing of bytes raises
                self._end(record, now, f"its answer cannot be read: {unread}")
                return
            if values is not None and values.size:
                record.finish_reason = finish_reason(result)
                record.responses.append((now, _text(values, record)))
                if len(record.responses) == 1:
                    self._changed.notify_all()
            if last:
                self._end(record, now)
        self._on_token(record)

    def _failed(self, error: Any, now: float) -> None:
        """An error names no request: if only one is open it is that one's, otherwise the stream's.

        Triton's own errors have no status; one that has it is the connection's.
        """
        message = str(getattr(error, "message", lambda: error)())
        status = getattr(error, "status", lambda: None)()
        if len(self._open) == 1 and status != GONE:
            self._end(next(iter(self._open.values())), now, message)
            return
        if status is None:
            self._refused = message
        else:
            self._broken = message
        self._changed.notify_all()


def _text(values: Any, record: RequestRecord) -> str:
    """A response's text; token ids of shape [1, beams, n] as their numbers, without the prompt's in front.

    Where tokens are streamed there are none: such a record has no ``input_tokens``.
    """
    if values.dtype.kind == "O":
        return str(values.reshape(-1)[0].decode(errors="replace"))
    record.tokens += values.shape[-1] - record.input_tokens
    return " ".join(map(str, values.reshape(-1)[record.input_tokens :]))
