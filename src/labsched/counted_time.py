"""Time that is counted from steps, in milliseconds of a stated cost: requests at such times, and how long they took.

A busy machine changes nothing of it. The replay says after how many steps each request arrives, the server is sent the
requests after as many, and its step log says when each token was there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from labsched.recording import Arrival, SchedulerSettings, StepRow
from labsched.replay import Replay, scheduler_of
from labsched.slo import Slo
from labsched.steplog import StepRecord

BLOCK_SIZE = 32
BLOCKS = "max_tokens_in_paged_kv_cache"


class ComputedStep(NamedTuple):
    """One computed step: for each request its name, a letter ("d" decodes), its computed and its new tokens."""

    ids: Sequence[str]
    phase: str
    tokens: Sequence[int]
    made: Sequence[int]

    @classmethod
    def of(cls, step: StepRecord) -> ComputedStep:
        return cls(step.ids, step.more["phase"], step.more["tokens"], step.more["made"])


class Latency(NamedTuple):
    """A request's times in counted milliseconds; the TPOT of an answer of one token is 0."""

    ttft: float
    tpot: float


@dataclass(frozen=True)
class Cost:
    """Milliseconds of a step: of any step, and more for each decoding request and each token of a prompt."""

    step: float
    decode: float
    prompt: float

    def of(self, phase: str, tokens: Sequence[int]) -> float:
        """Milliseconds of a step; a letter ("d" decodes) and the computed tokens of each request."""
        prompts = sum(count for letter, count in zip(phase, tokens, strict=True) if letter == "p")
        return self.step + self.decode * phase.count("d") + self.prompt * prompts


def replay_counted(
    words: Mapping[str, str], requests: Sequence[tuple[int, int]], times: Sequence[float], cost: Cost
) -> tuple[list[int], list[Latency]]:
    """After how many steps each request arrives if steps take as long as ``cost`` says, and how long it takes then.

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
    arrivals = [
        Arrival(str(number), at, 0, prompt, limit, limit, "length")
        for number, ((prompt, limit), at) in enumerate(zip(requests, times, strict=True))
    ]

    def milliseconds(row: StepRow) -> float:
        return cost.of(row.phase, row.tokens)

    rows = Replay(scheduler_of(settings), arrivals, milliseconds).run()
    begins = [row.began for row in rows]
    after = [bisect_left(begins, at) for at in times]
    steps = [ComputedStep(row.batch, row.phase, row.tokens, row.made) for row in rows]
    return after, latencies(steps, [arrival.name for arrival in arrivals], times, cost)


def latencies(steps: Sequence[ComputedStep], ids: Sequence[str], times: Sequence[float], cost: Cost) -> list[Latency]:
    """How long each request took.

    Args:
        steps: all steps of these requests, in order.
        ids: their names in the steps, in the order of ``times``.
        times: milliseconds at which each arrives.
    """
    arrived = dict(zip(ids, times, strict=True))
    token_times: dict[str, list[float]] = {id: [] for id in ids}
    now = 0.0
    for step in steps:
        idle_until = min(arrived[id] for id in step.ids)
        now = max(now, idle_until) + cost.of(step.phase, step.tokens)
        for id, made in zip(step.ids, step.made, strict=True):
            token_times[id] += [now] * made
    found = []
    for id, tokens in token_times.items():
        gaps = len(tokens) - 1
        tpot = (tokens[-1] - tokens[0]) / gaps if gaps else 0.0
        found.append(Latency(tokens[0] - arrived[id], tpot))
    return found


def good_share(times: Sequence[Latency], slo: Slo) -> float:
    """The share of requests whose TTFT and TPOT are within the limits: goodput over all requests."""
    return sum(slo.is_met(ttft, tpot) for ttft, tpot in times) / len(times)
