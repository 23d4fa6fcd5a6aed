"""The identity test of lab 05: every request at once against ``tensorrt_llm`` or an ensemble, and its ten rows.

Definitions as published with the workshop: latency from sending to the answer, P90 and P99 by nearest rank, and
Avg. InFlight requests as the sum of all latencies over the total.
"""

from __future__ import annotations

import csv
import gc
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from labkit.client import trtllm
from labkit.client.ask import InFlightClient, Tell, UnaryClient, kind_of, tensor
from labkit.client.dataset import Item
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence.records import RequestRecord

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
TIMEOUT_S = 600.0  # for the warm-up, and for the answers


@dataclass(frozen=True)
class Ids:
    """A request in token ids."""

    name: str
    prompt: list[int]
    output_tokens: int


def encode(items: Sequence[Item], ids_of: Callable[[str], list[int]], max_input_len: int) -> list[Ids]:
    """Token ids of every prompt of at most ``max_input_len`` tokens; longer ones are skipped, as in the original."""
    requests = []
    for item in items:
        ids = ids_of(item.prompt)
        if len(ids) <= max_input_len:
            requests.append(Ids(" ".join(item.prompt.split()[:6]), ids, item.output_tokens))
    if not requests:
        raise LabError(f"no prompt of the dataset has {max_input_len:,} tokens or fewer", code="prompts-too-long")
    return requests


def run_identity_test(
    endpoint: str,
    requests: Sequence[Ids],
    warmup: int = WARMUP,
    tell: Tell | None = None,
    sending: Callable[[int], AbstractContextManager[Any]] = nullcontext,
) -> list[RequestRecord]:
    """Warm up with other prompts, then send all requests at once; every record, answered.

    Args:
        sending: surrounds their sending, and is called with how many they are.
        tell: called with how many are answered, and of how many.

    Raises:
        LabError: a request failed, or is of the wrong length: nothing is averaged.
    """
    length = kind_of(endpoint, trtllm.MODEL, trtllm.OUTPUT_LENGTH)
    with UnaryClient(endpoint) as client:
        warming = [
            send_ids(client, unlike_prompt(requests[number % len(requests)]), length) for number in range(warmup)
        ]
        client.wait(*warming, timeout=TIMEOUT_S)
        # A collection of everything that was imported takes tenths of a second: not while requests are being sent.
        gc.collect()
        gc.freeze()
        try:
            with sending(len(requests)):
                records = [send_ids(client, request, length) for request in requests]
            client.wait(*records, timeout=TIMEOUT_S, tell=tell)
        finally:
            gc.unfreeze()
    pairs = zip(records, requests, strict=True)
    wrong = [record for record, request in pairs if record.tokens != request.output_tokens]
    if wrong:
        raise LabError(
            f"{len(wrong)} answers have the wrong length",
            f"{wrong[0].label}: {wrong[0].tokens}",
            code="answer-length-wrong",
        )
    return records


def unlike_prompt(request: Ids) -> Ids:
    """A prompt as long as this one that shares no beginning with it: a KV cache that is reused helps neither."""
    return replace(request, prompt=request.prompt[::-1])


def send_ids(client: InFlightClient, request: Ids, length: type[Any], **more: Any) -> RequestRecord:
    """One request to the engine.

    Args:
        length: the type of its output length (``kind_of``).
        more: parameters of the request.
    """
    inputs = [
        tensor(trtllm.PROMPT, request.prompt, np.int32),
        tensor(trtllm.PROMPT_LENGTH, len(request.prompt), np.int32),
        tensor(trtllm.OUTPUT_LENGTH, request.output_tokens, length),
    ]
    return client.send_inputs(
        trtllm.MODEL, request.name, inputs, trtllm.ANSWER, input_tokens=len(request.prompt), **more
    )


def identity_metrics(records: Sequence[RequestRecord]) -> dict[str, float]:
    """The ten rows, in their order."""
    latencies = [record.latency_ms for record in records]
    total = (max(r.end for r in records) - min(r.start for r in records)) * 1e3
    tokens = sum(record.output_tokens for record in records)
    p99, p90 = np.percentile(latencies, (99, 90), method="inverted_cdf")  # by nearest rank
    values = (
        len(records) / total * 1e3,
        tokens / total * 1e3,
        sum(latencies) / len(latencies),
        p99,
        p90,
        sum(record.input_tokens for record in records) / len(records),
        tokens / len(records),
        sum(latencies) / total,
        total,
        len(records),
    )
    return dict(zip(ROWS, map(float, values), strict=True))


def append_identity_csv(path: Path, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Append one line per named run; the header is written once."""
    out = io.StringIO()
    writer = csv.writer(out)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if not old:
        writer.writerow(["run", *ROWS])
    for name, values in rows.items():
        writer.writerow([name, *(f"{values[row]:.2f}" for row in ROWS)])
    atomic_write(path, old + out.getvalue())
