"""Clients of a sequence: each sends its whole text so far, appends the answer, and sends it again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from labkit.client.ask import SEQUENCE, Client, connect
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord

TIMEOUT_S = 60.0
OnStep = Callable[[RequestRecord], None]


class SequenceClient(Client):
    """One connection, for one thread, over which each request waits for its answer. Use as a context manager.

    Args:
        endpoint: host:port of the protocol's own port.
        model: takes a text and answers with the next token's. Its configuration names the tensors.
        protocol: http or grpc.
        id_type: uint64 or string, as the server's CORR_ID control is declared.
        timeout: seconds that an answer may take.
    """

    def __init__(
        self, endpoint: str, model: str, protocol: str = "http", id_type: str = "uint64", timeout: float = TIMEOUT_S
    ) -> None:
        self._id_type = id_type
        self._model, self._tensors = model, ("", "")
        self._kind: Any = tritonclient.grpc if protocol == "grpc" else tritonclient.http
        if protocol == "grpc":
            self._call = {"client_timeout": timeout}
            super().__init__(connect(endpoint))
        else:
            self._call = {}
            super().__init__(
                tritonclient.http.InferenceServerClient(endpoint, network_timeout=timeout, connection_timeout=timeout)
            )

    def ask(self, text: str, id: int | str, start: bool = False, end: bool = False) -> str:
        """The next token's text.

        Raises:
            LabError: the id is not of the server's type (nothing is sent), or Triton's own message.
        """
        self._check(id)
        try:
            input_name, output_name = self._names()
            tensor = self._kind.InferInput(input_name, [1, 1], "BYTES")
            tensor.set_data_from_numpy(np.array([[text.encode()]], dtype=np.object_))
            result = self._client.infer(
                self._model,
                [tensor],
                sequence_id=id,
                sequence_start=start,
                sequence_end=end,
                headers={SEQUENCE: str(id)},
                **self._call,
            )
        except InferenceServerException as error:
            raise LabError(
                f"Triton refused a request of sequence {id!r}", error.message(), code="sequence-refused"
            ) from error
        except OSError as error:
            raise LabError(
                "Triton did not answer", str(error), "labctl logs shows the server's side", code="server-silent"
            ) from error
        return "".join(token.decode(errors="replace") for token in result.as_numpy(output_name).reshape(-1))

    def _names(self) -> tuple[str, str]:
        """The model's input and output, asked once."""
        if not self._tensors[0]:
            as_json = {"as_json": True} if self._kind is tritonclient.grpc else {}
            metadata = self._client.get_model_metadata(self._model, **as_json, **self._call)
            self._tensors = (metadata["inputs"][0]["name"], metadata["outputs"][0]["name"])
        return self._tensors

    def _check(self, id: int | str) -> None:
        """Triton does not check: it writes a text over the 8 bytes of a number."""
        if isinstance(id, str) != (self._id_type == "string"):
            raise LabError(
                f"correlation id {id!r} is not of the type that this server declares ({self._id_type})",
                "Triton 2.51 would write the text over the 8 bytes of a number, and the model would get another id",
                "labctl up sequence --set correlation_id=" + ("string" if isinstance(id, str) else "uint64"),
                code="correlation-id-type",
            )

    def follow(self, record: RequestRecord, id: int | str, steps: int, on_step: OnStep | None = None) -> None:
        """A sequence of ``steps`` requests, beginning with ``record.prompt``; the record gets a response for each.

        Raises as ``ask`` does.
        """
        text = record.prompt
        record.start = time.monotonic()
        for step in range(steps):
            token = self.ask(text, id, start=step == 0, end=step == steps - 1)
            text += token
            record.responses.append((time.monotonic(), token))
            if step == steps - 1:
                record.end = record.responses[-1][0]
            if on_step:
                on_step(record)


def run_sequences(
    connect: Callable[[], SequenceClient],
    records: Sequence[RequestRecord],
    ids: Sequence[int | str],
    steps: int,
    on_step: OnStep | None = None,
) -> None:
    """All sequences at once, each by a client of its own. Raises the first failure, when all have ended."""

    def run_sequence(record: RequestRecord, id: int | str) -> None:
        with connect() as client:
            client.follow(record, id, steps, on_step)

    with ThreadPoolExecutor(max_workers=len(records)) as pool:
        for future in [pool.submit(run_sequence, record, id) for record, id in zip(records, ids, strict=True)]:
            future.result()


def identifiers(count: int, id_type: str, first: int = 1001) -> list[int | str]:
    """Correlation ids of the right type: 1001, 1002, ... or "client-1001", ..."""
    numbers = range(first, first + count)
    return [f"client-{number}" for number in numbers] if id_type == "string" else list(numbers)
