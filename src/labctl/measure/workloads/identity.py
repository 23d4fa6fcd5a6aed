"""The identity test of lab 05: every request at once against ``tensorrt_llm`` or an ensemble, and its ten rows.

Definitions as published with the workshop: latency from sending to the answer, P90 and P99 by nearest rank, and
Avg. InFlight requests as the sum of all latencies over the total.
"""

from __future__ import annotations

import csv
import functools
import gc
import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient

from labctl.errors import LabError
from labctl.measure.records import RequestRecord, request_id
from labctl.measure.stats import nearest_rank
from labctl.measure.workloads.dataset import Item
from labctl.workspace import atomic_write

ROWS = (
    "Requests/Sec",
    "OP tokens/sec",
    "Avg. latency (ms)",
    "P99 latency (ms)",
    "P90 latency (ms)",
    "Avg. IP tokens per request",
    "Avg. OP tokens per request",
    "Avg. InFlight requests",
    "Total latency (ms)",
    "Total requests",
)
WARMUP = 10
_TYPES = {np.int32: "INT32", np.uint32: "UINT32", np.uint64: "UINT64", np.bool_: "BOOL", np.float32: "FP32"}


@dataclass(frozen=True)
class Ids:
    """A request in token ids."""

    name: str
    prompt: list[int]
    output_tokens: int


def encode(items: Sequence[Item], ids_of: Callable[[str], list[int]], max_input_len: int) -> list[Ids]:
    """Token ids of every prompt of at most ``max_input_len`` tokens; longer ones are skipped, as in the original."""
    found = []
    for item in items:
        ids = ids_of(item.prompt)
        if len(ids) <= max_input_len:
            found.append(Ids(" ".join(item.prompt.split()[:6]), ids, item.output_tokens))
    if not found:
        raise LabError(f"no prompt of the dataset has {max_input_len:,} tokens or fewer")
    return found


def tensor(name: str, value: Any, kind: type[Any]) -> Any:
    """An input of shape [1, n] for the values (or the one value) given."""
    array = np.array([value if isinstance(value, list) else [value]], dtype=kind)
    made = grpcclient.InferInput(name, array.shape, _TYPES[kind])
    made.set_data_from_numpy(array)
    return made


@functools.cache
def kind_of(endpoint: str, model: str, name: str) -> type[Any]:
    """The numpy type of a model's input, as the running server says: releases of TensorRT-LLM differ in integers.

    Raises:
        LabError: the model has no such input, or one of another kind.
    """
    with grpcclient.InferenceServerClient(endpoint) as client:
        found = {item.name: item.datatype for item in client.get_model_metadata(model).inputs}
    for kind, datatype in _TYPES.items():
        if found.get(name) == datatype:
            return kind
    raise LabError(f"{model} has no input {name} of numbers", f"its inputs: {', '.join(found)}")


def text_tensor(name: str, value: str, shape: Sequence[int] = (1, 1)) -> Any:
    """A string input."""
    made = grpcclient.InferInput(name, list(shape), "BYTES")
    made.set_data_from_numpy(np.array([value.encode()], dtype=np.object_).reshape(shape))
    return made


class Unary:
    """Any number of unary requests in flight at once; `wait` returns when all are answered.

    Use as a context manager.
    """

    def __init__(self, endpoint: str) -> None:
        self._client = grpcclient.InferenceServerClient(endpoint)
        self._changed = threading.Condition()
        self._open = 0

    def __enter__(self) -> Unary:
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def send(self, model: str, inputs: list[Any], record: RequestRecord, output: str) -> RequestRecord:
        """Send a request; ``record`` is filled when its answer comes."""

        def answered(result: Any, error: Any) -> None:
            record.end = time.monotonic()
            if error is not None:
                record.error = str(error)
            else:
                values = result.as_numpy(output)
                text = values.reshape(-1)[0].decode(errors="replace") if values.dtype == np.object_ else ""
                record.responses.append((record.end, text))
                if values.dtype != np.object_:
                    record.tokens = values.shape[2] - record.input_tokens
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

        with self._changed:
            self._open += 1
        record.id = request_id()
        record.start = time.monotonic()
        self._client.async_infer(model, inputs, answered, request_id=record.id)
        return record

    def wait(self, timeout: float) -> None:
        """Raises LabError when an answer is missing after ``timeout`` seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._open, timeout=timeout):
                raise LabError(f"{self._open} requests had no answer within {timeout:g} s", "", "labctl logs")


def run(
    endpoint: str, requests: Sequence[Ids], gap_s: float = 0.0, timeout: float = 600.0, warmup: int = WARMUP
) -> list[RequestRecord]:
    """Warm up, then send all requests at once (or ``gap_s`` seconds apart); every record, answered.

    Raises:
        LabError: a request failed, or is of the wrong length: nothing is averaged.
    """
    length = kind_of(endpoint, "tensorrt_llm", "request_output_len")
    with Unary(endpoint) as client:
        for number in range(warmup):
            _send(client, requests[number % len(requests)], f"warm-up-{number}", length)
        client.wait(timeout)
        # A collection of everything that was imported takes tenths of a second: not while requests are being sent.
        gc.collect()
        gc.freeze()
        records: list[RequestRecord] = []
        for number, request in enumerate(requests):
            if gap_s and records:
                time.sleep(gap_s)
            records.append(_send(client, request, f"request-{number}", length))
        client.wait(timeout)
    gc.unfreeze()
    failed = [record for record in records if not record.ok]
    if failed:
        raise LabError(f"{len(failed)} of {len(records)} requests failed; nothing is averaged", failed[0].error)
    wrong = [r for r, q in zip(records, requests, strict=True) if r.tokens != q.output_tokens]
    if wrong:
        raise LabError(f"{len(wrong)} answers are not as long as was asked for", f"{wrong[0].label}: {wrong[0].tokens}")
    return records


def _send(client: Unary, request: Ids, name: str, length: type[Any]) -> RequestRecord:
    record = RequestRecord(name, "tensorrt_llm", request.name, input_tokens=len(request.prompt))
    inputs = [
        tensor("input_ids", request.prompt, np.int32),
        tensor("input_lengths", len(request.prompt), np.int32),
        tensor("request_output_len", request.output_tokens, length),
    ]
    return client.send("tensorrt_llm", inputs, record, "output_ids")


def table(records: Sequence[RequestRecord]) -> dict[str, float]:
    """The ten rows, in their order."""
    latencies = [record.latency_ms for record in records]
    total = (max(r.end for r in records) - min(r.start for r in records)) * 1e3
    tokens = sum(record.output_tokens for record in records)
    values = (
        len(records) / total * 1e3,
        tokens / total * 1e3,
        sum(latencies) / len(latencies),
        nearest_rank(latencies, 0.99),
        nearest_rank(latencies, 0.90),
        sum(record.input_tokens for record in records) / len(records),
        tokens / len(records),
        sum(latencies) / total,
        total,
        len(records),
    )
    return dict(zip(ROWS, map(float, values), strict=True))


def write_csv(path: Path, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Append one line per named run; the header is written once."""
    out = io.StringIO()
    writer = csv.writer(out)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if not old:
        writer.writerow(["run", *ROWS])
    for name, values in rows.items():
        writer.writerow([name, *(f"{values[row]:.2f}" for row in ROWS)])
    atomic_write(path, old + out.getvalue())
