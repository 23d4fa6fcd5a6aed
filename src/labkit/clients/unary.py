"""Requests that get one answer each, any number of them in flight at once."""

from __future__ import annotations

import functools
import time
from typing import Any

from labkit.clients.base import InFlightClient, finish_reason
from labkit.records import RequestRecord


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
