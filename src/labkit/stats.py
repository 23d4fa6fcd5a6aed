"""Statistics of a run, by the field's names and formulas (AIPerf, GenAI-Perf)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.records import RequestRecord

PERCENTILES = (50, 75, 90, 95, 99)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """avg, min, max, p50..p99 (linear interpolation) and the population's std. Raises ValueError for no values."""
    if not len(values):
        raise ValueError("no values to summarize")
    data = np.asarray(values, dtype=np.float64)
    result = {"avg": float(data.mean()), "min": float(data.min()), "max": float(data.max()), "std": float(data.std())}
    return result | {f"p{p}": float(np.percentile(data, p)) for p in PERCENTILES}


def metrics(records: Sequence[RequestRecord], goodput_ttft_ms: float | None = None) -> dict[str, Any]:
    """All metrics of a run in which every request succeeded: times in ms, rates per second, the duration in s.

    An answer that comes whole has no first token: such a run has no time_to_first_token, and no goodput.

    Args:
        goodput_ttft_ms: requests whose first token took longer do not count as good.

    Raises:
        LabError: a request failed: partial data is never averaged.
    """
    failed = [record for record in records if not record.ok]
    if failed or not records:
        first = f"the first: {failed[0].model}: {failed[0].error or 'no response'}" if failed else ""
        raise LabError(
            f"{len(failed)} of {len(records)} requests failed; nothing is averaged",
            first,
            "labctl logs shows the server's side",
        )
    duration = max(r.responses[-1][0] for r in records) - min(r.start for r in records)
    tokens = sum(record.output_tokens for record in records)
    several = [record for record in records if record.output_tokens > 1 and record.itl_ms > 0]
    result: dict[str, Any] = {
        "request_latency": summarize([r.latency_ms for r in records]),
        "output_sequence_length": summarize([float(r.output_tokens) for r in records]),
        "output_token_throughput": tokens / duration,
        "request_throughput": len(records) / duration,
        "request_count": len(records),
        "error_request_count": 0,
        "benchmark_duration": duration,
    }
    if streamed := not any(record.tokens for record in records):
        result["time_to_first_token"] = summarize([r.ttft_ms for r in records])
    if several:
        result["inter_token_latency"] = summarize([r.itl_ms for r in several])
        result["output_token_throughput_per_user"] = summarize([1e3 / r.itl_ms for r in several])
    if any(r.input_tokens for r in records):
        result["input_sequence_length"] = summarize([float(r.input_tokens) for r in records])
    if streamed and goodput_ttft_ms is not None:
        result["goodput"] = sum(r.ttft_ms <= goodput_ttft_ms for r in records) / duration
    return result
