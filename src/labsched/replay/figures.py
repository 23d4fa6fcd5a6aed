"""The figures of a run, recorded or predicted: times as the scheduler sees them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from labsched.errors import LabError
from labsched.replay.slo import Slo
from labsched.step import Step

Times = Mapping[str, Mapping[str, float]]  # TTFT and TPOT (ms) of each request that has it, by its name
COUNTED = ("steps", "mean_batch", "preemptions", "recomputed_tokens", "cached_tokens", "without_token")


def figures(steps: Sequence[Step], arrived: Mapping[str, float], slo: Slo | None = None) -> dict[str, float]:
    """The figures of a run by name; times from a request's arrival in the model to the end of a step, in ms.

    TPOT is a request's mean time per token after the first; ITL each single gap (docs/glossary.md).

    Args:
        steps: every step, in order.
        arrived: when each request arrived, in the seconds of ``steps``.
        slo: adds goodput, the good requests per second, and their share: a request without a token is not good.

    Raises LabError: no request has an answer.
    """
    import numpy as np

    times: dict[str, list[float]] = defaultdict(list)  # of each request's tokens
    again: set[str] = set()  # preempted requests whose tokens are computed again
    counts = dict.fromkeys(COUNTED, 0.0)
    for step in steps:
        again.update(step.evicted)
        counts["preemptions"] += len(step.evicted)
        counts["cached_tokens"] += sum(step.cached)
        for name, letter, tokens, made in zip(step.ids, step.phase, step.tokens, step.made, strict=True):
            if letter == "p" and name in again:
                counts["recomputed_tokens"] += tokens
            if made:
                again.discard(name)
                times[name] += [step.over] * made
    answered = {name: ends for name, ends in times.items() if name in arrived}
    if not answered:
        raise LabError(
            "no request of this run has an answer",
            "its figures are times of answers",
            "record a run in which requests are answered",
            code="figures-none",
        )
    counts["steps"] = len(steps)
    counts["without_token"] = len(arrived) - len(answered)
    counts["mean_batch"] = sum(step.batch for step in steps) / len(steps)
    ttft, tpot = token_times(answered, arrived).values()
    itl = [gap * 1e3 for ends in answered.values() for gap in np.diff(ends)]
    whole = [(ends[-1] - arrived[name]) * 1e3 for name, ends in answered.items()]
    span = max(step.over for step in steps) - min(arrived[name] for name in answered)
    rate = 1 / span if span > 0 else 0.0
    run = {
        **counts,
        **_percentiles("ttft", list(ttft.values())),
        **_percentiles("tpot", list(tpot.values())),
        **_percentiles("itl", itl),
        "e2e_mean_ms": float(np.mean(whole)),
        "e2e_p99_ms": float(np.percentile(whole, 99)),
        "tokens_per_s": sum(map(len, answered.values())) * rate,
        "requests_per_s": len(answered) * rate,
    }
    if slo:
        good = sum(slo.is_met(ttft[name], tpot.get(name, 0.0)) for name in answered)
        run |= {"goodput_per_s": good * rate, "good_share": good / len(arrived)}
    return run


def request_times(steps: Sequence[Step], arrived: Mapping[str, float]) -> Times:
    """The TTFT and the TPOT of each request of a run. Arguments as of :func:`figures`."""
    ends: dict[str, list[float]] = {name: [] for name in arrived}
    for step in steps:
        for name, made in zip(step.ids, step.made, strict=True):
            if made and name in ends:
                ends[name] += [step.over] * made
    return token_times({name: times for name, times in ends.items() if times}, arrived)


def token_times(answered: Mapping[str, Sequence[float]], arrived: Mapping[str, float]) -> Times:
    """From when each request that has tokens had them."""
    return {
        "TTFT": {name: (ends[0] - arrived[name]) * 1e3 for name, ends in answered.items()},
        "TPOT": {
            name: (ends[-1] - ends[0]) * 1e3 / (len(ends) - 1) for name, ends in answered.items() if len(ends) > 1
        },
    }


def _percentiles(name: str, values: Sequence[float]) -> dict[str, float]:
    import numpy as np

    return {f"{name}_p{p}_ms": float(np.percentile(values, p)) if len(values) else 0.0 for p in (50, 95, 99)}


class FirstDifference(NamedTuple):
    """The first step at which two runs part, from 1, and what differs there: by name, its values in both runs."""

    step: int
    differs: dict[str, tuple[Any, Any]]


def first_difference(first: Sequence[Step], second: Sequence[Step]) -> FirstDifference | None:
    """Where two runs part; None if they are the same."""
    for number, steps in enumerate(zip(first, second, strict=False), 1):
        a, b = (step.decides for step in steps)
        if a != b:
            return FirstDifference(number, {name: (a[name], b[name]) for name in a if a[name] != b[name]})
    if len(first) != len(second):
        return FirstDifference(min(len(first), len(second)) + 1, {"steps": (len(first), len(second))})
    return None
