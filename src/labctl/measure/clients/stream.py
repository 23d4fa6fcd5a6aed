"""Requests over a gRPC stream: a decoupled model answers token by token, another once; each response has its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from labctl.errors import LabError
from labctl.measure.records import RequestRecord, request_id

OnToken = Callable[[RequestRecord], None]
GONE = "StatusCode.UNAVAILABLE"  # the status of gRPC's own error where nobody answers any more


class TextStream:
    """One bidirectional gRPC stream to a server; any number of requests at once.

    Use as a context manager: leaving it cancels what is still running.
    """

    def __init__(self, endpoint: str, on_token: OnToken | None = None) -> None:
        self._client = grpcclient.InferenceServerClient(endpoint)
        self._on_token = on_token or (lambda record: None)
        self._open: dict[str, RequestRecord] = {}
        self._outputs: dict[str, str] = {}
        self._changed = threading.Condition()
        self._broken = ""
        self._count = 0

    def __enter__(self) -> TextStream:
        self._client.start_stream(callback=self._arrived)
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.stop_stream(cancel_requests=True)
        self._client.close()

    def send(self, model: str, prompt: str, **parameters: Any) -> RequestRecord:
        """Send one request and return its record, which fills as responses arrive."""
        text = grpcclient.InferInput("text_input", [1, 1], "BYTES")
        text.set_data_from_numpy(np.array([[prompt.encode()]], dtype=np.object_))
        return self.send_inputs(model, prompt, [text], **parameters)

    def send_inputs(
        self, model: str, prompt: str, inputs: list[Any], output: str = "text_output", tokens: int = 0,
        **parameters: Any,
    ) -> RequestRecord:  # fmt: skip
        """The same with the inputs ready made; ``prompt`` is only the record's name for them.

        Args:
            output: which output tensor holds the text.
            tokens: how long the answer will be where one response holds it all.
        """
        with self._changed:
            self._count += 1
            label = f"{model}-{self._count}"
            record = RequestRecord(label, model, prompt, parameters, id=request_id(), tokens=tokens)
            self._open[record.id] = record
            self._outputs[record.id] = output
        record.start = time.monotonic()
        self._client.async_stream_infer(
            model,
            inputs,
            request_id=record.id,
            parameters=parameters,
            enable_empty_final_response=True,
        )
        return record

    def wait_first(self, record: RequestRecord, timeout: float) -> None:
        """Return when the first response of ``record`` has come. Raises LabError as ``wait`` does."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._broken or record.end or record.responses, timeout=timeout)
        if not done:
            raise LabError(f"{record.model} had no first response within {timeout:g} s",
                           "", "labctl status shows whether the stack is stalled")  # fmt: skip
        if not record.responses:
            self.wait(record, timeout=0)

    def wait(self, *records: RequestRecord, timeout: float) -> None:
        """Return when all of ``records`` have ended.

        Raises:
            LabError: a request failed, the stream broke, or ``timeout`` seconds are over.
        """
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._broken or all(record.end for record in records), timeout=timeout
            )
        failed = next((record for record in records if record.error), None)
        if failed:
            raise LabError(f"{failed.model} answered with an error", failed.error)
        if self._broken:
            raise LabError("the connection to the server broke", self._broken, "labctl status shows whether it lives")
        if not done:
            waiting = sum(not record.end for record in records)
            raise LabError(f"{waiting} of {len(records)} requests had no last response within {timeout:g} s",
                           "", "labctl status shows whether the stack is stalled")  # fmt: skip

    def ended(self, record: RequestRecord, timeout: float) -> bool:
        """Whether ``record`` has ended, well or badly, or can no longer; waits for it up to ``timeout`` seconds."""
        with self._changed:
            return bool(self._changed.wait_for(lambda: self._broken or record.end, timeout=timeout))

    def check(self) -> None:
        """Raise LabError if the stream is broken."""
        with self._changed:
            if self._broken:
                raise LabError("the connection to the server broke", self._broken, "labctl status")

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
            values = result.as_numpy(self._outputs[record.id])
            if values is not None and values.size:
                record.responses.append((now, values.reshape(-1)[0].decode(errors="replace")))
                if len(record.responses) == 1:
                    self._changed.notify_all()
            final = response.parameters.get("triton_final_response")
            if final is not None and final.bool_param:
                record.end = now
                del self._open[record.id], self._outputs[record.id]
                self._changed.notify_all()
        self._on_token(record)

    def _failed(self, error: Any, now: float) -> None:
        """An error names no request: if only one is open it is that one's, otherwise the stream's.

        Triton's own errors have no status; one that has it is the connection's.
        """
        message = str(getattr(error, "message", lambda: error)())
        if len(self._open) == 1 and getattr(error, "status", lambda: None)() != GONE:
            record = self._open.popitem()[1]
            record.error, record.end = message, now
        else:
            self._broken = message
        self._changed.notify_all()
