"""Requests over a gRPC stream: a decoupled model answers token by token, another once; each response has its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

from labkit.clients.base import GONE, SEQUENCE, STALLED, TELL_S, InFlightClient, finish_reason
from labkit.clients.tensors import text_tensor
from labkit.errors import LabError
from labkit.records import RequestRecord

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
