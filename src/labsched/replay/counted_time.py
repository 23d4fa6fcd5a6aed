"""Time that is counted from steps, in milliseconds of a stated cost: requests at such times, and how long they took.

A busy machine changes nothing of it. The replay says after how many steps each request arrives, the server is sent the
requests after as many, and its step log says when each token was there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from labsched.costs import StepCosts, StepCounts
from labsched.log.settings import SchedulerSettings
from labsched.replay.player import Replay, StepSeconds, scheduler_of
from labsched.replay.recording import Arrival
from labsched.replay.slo import Slo
from labsched.step import Step

BLOCK_SIZE = 32
BLOCKS = "max_tokens_in_paged_kv_cache"


class Latency(NamedTuple):
    """A request's times in counted milliseconds; the TPOT of an answer of one token is 0."""

    ttft: float
    tpot: float


def time_by(cost: StepCosts) -> StepSeconds:
    """Return what a replay asks for the time of a step: what it comes to by ``cost``, in milliseconds."""
    return lambda step: cost.seconds(StepCounts.of(step.phase, step.tokens))


def counted_arrivals(requests: Sequence[tuple[int, int]], times: Sequence[float]) -> list[Arrival]:
    """Requests that arrive at given milliseconds, named by their place.

    Args:
        requests: tokens of each prompt and answer, in order of arrival.
        times: milliseconds at which each arrives.
    """
    return [
        Arrival(str(number), at, 0, prompt, limit, limit, "length")
        for number, ((prompt, limit), at) in enumerate(zip(requests, times, strict=True))
    ]


def replay_counted(
    words: Mapping[str, str], requests: Sequence[tuple[int, int]], times: Sequence[float], cost: StepCosts
) -> tuple[list[int], list[Latency]]:
    """Count after how many steps each request arrives if steps take as long as ``cost`` says, and how long it takes.

    Args:
        words: the parameters of ``tensorrt_llm``, as its config.pbtxt has them; max_num_tokens and the cache are given.
        requests: tokens of each prompt and answer, in order of arrival.
        times: milliseconds at which each arrives.

    Raises:
        LabError: a request can never be admitted.
    """
    settings = SchedulerSettings(
        words=words,
        blocks=int(words[BLOCKS]) // BLOCK_SIZE,
        block_size=BLOCK_SIZE,
        step_tokens=int(words["max_num_tokens"]),
        context=0,
        vocabulary=0,
    )
    replay = Replay(scheduler_of(settings), counted_arrivals(requests, times), time_by(cost))
    steps = replay.run()
    begins = [step.began for step in steps]
    return [bisect_left(begins, at) for at in times], latencies(steps, replay.arrived)


def time_steps(steps: Sequence[Step], arrived: Mapping[str, float], cost: StepCosts) -> list[Step]:
    """Give the steps of a server the times that they take by ``cost``.

    Args:
        steps: all steps of these requests, in order, as its step log has them.
        arrived: milliseconds at which each request arrives, by its name there.
    """
    timed, now = [], 0.0
    for step in steps:
        began = max(now, min(arrived[name] for name in step.ids))
        now = began + cost.seconds(StepCounts.of(step.phase, step.tokens))
        timed.append(replace(step, began=began, over=now))
    return timed


def latencies(steps: Sequence[Step], arrived: Mapping[str, float]) -> list[Latency]:
    """Return how long each request took, in the order of ``arrived``.

    Args:
        steps: all steps of these requests, in order.
        arrived: milliseconds at which each request arrived, by name.
    """
    token_times: dict[str, list[float]] = {name: [] for name in arrived}
    for step in steps:
        for name, made in zip(step.ids, step.made, strict=True):
            token_times[name] += [step.over] * made
    found = []
    for name, tokens in token_times.items():
        gaps = len(tokens) - 1
        tpot = (tokens[-1] - tokens[0]) / gaps if gaps else 0.0
        found.append(Latency(tokens[0] - arrived[name], tpot))
    return found


def good_share(times: Sequence[Latency], slo: Slo) -> float:
    """Return the share of requests whose TTFT and TPOT are within the limits: goodput over all requests."""
    return sum(slo.is_met(ttft, tpot) for ttft, tpot in times) / len(times)
