"""Statistics of a run, by the field's names and formulas (AIPerf, GenAI-Perf; TPOT and ITL as vLLM has them)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from labkit.errors import LabError
from labkit.evidence.records import RequestRecord
from labsched.replay.slo import Slo

PERCENTILES = (50, 75, 90, 95, 99)


def summarize(values: Sequence[float]) -> dict[str, float]:
    """avg, min, max, p50..p99 (linear interpolation) and the population's std. Raises ValueError for no values."""
    if not len(values):
        raise ValueError("no values to summarize")
    data = np.asarray(values, dtype=np.float64)
    result = {"avg": float(data.mean()), "min": float(data.min()), "max": float(data.max()), "std": float(data.std())}
    return result | {f"p{p}": float(np.percentile(data, p)) for p in PERCENTILES}


def metrics(
    records: Sequence[RequestRecord], slo: Slo | None = None, price: float | None = None, counted: bool = True
) -> dict[str, Any]:
    """All metrics of a run in which every request succeeded: times in ms, rates per second, the duration in s.

    An answer that comes whole has no first token: such a run has no time_to_first_token, and no goodput.
    time_per_output_token is a mean of each request, inter_token_latency each single gap (docs/glossary.md).

    Args:
        slo: adds goodput, the requests per second that meet every limit, and that of each tenant where there are some.
        price: of an hour; adds cost_per_million_tokens, of the output tokens (with ``slo``, of the requests that meet
            it: the others are paid for, and not counted). It is missing where no request meets it.
        counted: the records know their tokens. Without it there are only responses: response_throughput, and nothing
            that is divided by tokens.

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
            code="requests-failed",
        )
    duration = max(r.responses[-1][0] for r in records) - min(r.start for r in records)
    tokens = sum(record.output_tokens for record in records)
    several = [record for record in records if counted and record.output_tokens > 1 and record.tpot_ms > 0]
    whole = all(len(record.responses) == 1 and bool(record.tokens or not counted) for record in records)
    result: dict[str, Any] = {
        "request_latency": summarize([r.latency_ms for r in records]),
        "request_throughput": len(records) / duration,
        "request_count": len(records),
        "error_request_count": 0,
        "benchmark_duration": duration,
    }
    if counted:
        result["output_sequence_length"] = summarize([float(r.output_tokens) for r in records])
        result["output_token_throughput"] = tokens / duration
    else:
        result["response_throughput"] = sum(len(record.responses) for record in records) / duration
    if not whole:
        result["time_to_first_token"] = summarize([r.ttft_ms for r in records])
    if several:
        result["time_per_output_token"] = summarize([r.tpot_ms for r in several])
        result["output_token_throughput_per_user"] = summarize([1e3 / r.tpot_ms for r in several])
    if several and not any(record.tokens for record in records):
        result["inter_token_latency"] = summarize([gap for r in records for gap in r.itl_ms])
    if any(r.input_tokens for r in records):
        result["input_sequence_length"] = summarize([float(r.input_tokens) for r in records])
    good = records
    if slo and not whole:
        good = [record for record in records if slo.is_met(record.ttft_ms, record.tpot_ms)]
        result["goodput"] = len(good) / duration
        tenants = {str(record.parameters.get("tenant", "default")) for record in records}
        if tenants != {"default"}:
            whose = Counter(str(record.parameters.get("tenant", "default")) for record in good)
            result["goodput_by_class"] = {name: whose[name] / duration for name in sorted(tenants)}
    if price is not None and good:
        good_tokens = sum(record.output_tokens for record in good)
        result["cost_per_million_tokens"] = price / 3600 * duration / good_tokens * 1e6
    return result
