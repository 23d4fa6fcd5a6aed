"""The figures of a run, recorded or predicted: times as the scheduler sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from labsched.recording import StepRow
from labsched.slo import Slo

COUNTED = ("steps", "mean_batch", "preemptions", "recomputed_tokens", "cached_tokens")


def figures(rows: Sequence[StepRow], arrived: Mapping[str, float], slo: Slo | None = None) -> dict[str, float]:
    """The figures of a run by name; times from a request's arrival in the model to the end of a step, in ms.

    TPOT is a request's mean time per token after the first; ITL each single gap (docs/glossary.md).

    Args:
        rows: every step, in order.
        arrived: when each request arrived, in the seconds of ``rows``.
        slo: adds goodput, the good requests per second.
    """
    import numpy as np

    came: dict[str, list[float]] = defaultdict(list)  # the times of each request's tokens
    again: set[str] = set()
    counts = dict.fromkeys(COUNTED, 0.0)
    for row in rows:
        again.update(row.preempted)
        counts["preemptions"] += len(row.preempted)
        counts["cached_tokens"] += sum(row.cached)
        for name, letter, tokens, made in zip(row.batch, row.phase, row.tokens, row.made, strict=True):
            counts["recomputed_tokens"] += tokens if letter == "p" and name in again else 0
            if made:
                again.discard(name)
                came[name] += [row.over] * made
    counts["steps"] = len(rows)
    counts["mean_batch"] = sum(len(row.batch) for row in rows) / len(rows)
    done = [name for name in came if name in arrived]
    ttft = {name: (came[name][0] - arrived[name]) * 1e3 for name in done}
    tpot = {name: (times[-1] - times[0]) * 1e3 / (len(times) - 1) for name in done if len(times := came[name]) > 1}
    itl = [gap * 1e3 for name in done for gap in np.diff(came[name])]
    whole = [(came[name][-1] - arrived[name]) * 1e3 for name in done]
    span = max(row.over for row in rows) - min(arrived[name] for name in done)
    rate = 1 / span if span > 0 else 0.0
    found = {
        **counts,
        **_percentiles("ttft", list(ttft.values())),
        **_percentiles("tpot", list(tpot.values())),
        **_percentiles("itl", itl),
        "e2e_mean_ms": float(np.mean(whole)),
        "e2e_p99_ms": float(np.percentile(whole, 99)),
        "tokens_per_s": sum(len(came[name]) for name in done) * rate,
        "requests_per_s": len(done) * rate,
    }
    if slo:
        good = [name for name in done if slo.is_met(ttft[name], tpot.get(name, 0.0))]
        found |= {"goodput_per_s": len(good) * rate, "good_share": len(good) / len(done)}
    return found


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    import numpy as np

    return {f"{name}_p{p}_ms": float(np.percentile(values, p)) if len(values) else 0.0 for p in (50, 95, 99)}


class FirstDifference(NamedTuple):
    """The first step at which two runs part, from 1, and what differs there: by its name, in one and in the other."""

    step: int
    differs: dict[str, tuple[Any, Any]]


def first_difference(one: Sequence[StepRow], other: Sequence[StepRow]) -> FirstDifference | None:
    """Where two runs part; None if they are the same."""
    for number, (a, b) in enumerate(zip(one, other, strict=False), 1):
        if a.decides != b.decides:
            differs = {name: (v, b.decides[name]) for name, v in a.decides.items() if v != b.decides[name]}
            return FirstDifference(number, differs)
    if len(one) != len(other):
        return FirstDifference(min(len(one), len(other)) + 1, {"steps": (len(one), len(other))})
    return None
