"""Admission before an engine that takes every request: a gate that admits, rejects or holds, in counted time.

The engine computes a request's whole prompt in the step in which it joins, and this step makes its first token; each
later step makes one more. That is what every engine here does whose memory and token budget are large enough. So the
gate can be played without the engine, and the engine be sent what the gate let through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from labsched.counted_time import Cost
from labsched.slo import Slo

ADMIT, REJECT, WAIT = "admit", "reject", "wait"
FUNCTION = "admit"
Decide = Callable[[Mapping[str, Any]], str]


class GatedRequest(NamedTuple):
    """A request before the gate."""

    arrived: float  # milliseconds
    prompt: int  # tokens
    answer: int


@dataclass(frozen=True)
class AdmissionLoad:
    """Requests in order of arrival, what a step costs, and the limits."""

    requests: Sequence[GatedRequest]
    cost: Cost
    slo: Slo


@dataclass
class AdmissionResult:
    """The gate's decisions, by the request's place in the load. A request that it held to the end is in none.

    Attributes:
        after: how many steps the engine had computed when the request was admitted.
        released: and when that was, in milliseconds.
        rejected: when it was rejected, and how many requests ran then.
        rounds: in which round of decisions, and which.
    """

    after: dict[int, int] = field(default_factory=dict)
    released: dict[int, float] = field(default_factory=dict)
    rejected: dict[int, tuple[float, int]] = field(default_factory=dict)
    rounds: dict[int, tuple[int, str]] = field(default_factory=dict)


def play_load(load: AdmissionLoad, decide: Decide) -> AdmissionResult:
    """Let ``decide`` answer for each held request, in order of arrival, before each step.

    Raises ValueError: it answers something else than the three words.
    """
    requests, cost, result = load.requests, load.cost, AdmissionResult()
    waiting: list[int] = []
    running: dict[int, int] = {}  # the tokens that each still has to make
    now = 0.0
    steps = coming = rounds = 0
    while True:
        while coming < len(requests) and requests[coming].arrived <= now:
            waiting.append(coming)
            coming += 1
        joining: list[int] = []
        held: list[int] = []
        for number in waiting:
            request = requests[number]
            state = {
                "number": number,
                "round": rounds,
                "now": now,
                "arrived": request.arrived,
                "prompt": request.prompt,
                "answer": request.answer,
                "running": len(running) + len(joining),
                "ahead": len(held),
                "joining_tokens": sum(requests[other].prompt for other in joining),
                "step_ms": cost.step,
                "decode_ms": cost.decode,
                "prompt_token_ms": cost.prompt,
                "ttft_ms": load.slo.ttft,
                "tpot_ms": load.slo.tpot,
            }
            decision = decide(state)
            if decision == ADMIT:
                joining.append(number)
                result.after[number] = steps
                result.released[number] = now
            elif decision == REJECT:
                result.rejected[number] = now, len(running) + len(joining)
            elif decision == WAIT:
                held.append(number)
                continue
            else:
                raise ValueError(f"{FUNCTION} returned {decision!r}: it returns {ADMIT!r}, {REJECT!r} or {WAIT!r}")
            result.rounds[number] = rounds, decision
        waiting = held
        rounds += 1
        if not running and not joining:
            if coming == len(requests):
                return result
            now = requests[coming].arrived
            continue
        tokens = [1] * len(running) + [requests[number].prompt for number in joining]
        now += cost.of("d" * len(running) + "p" * len(joining), tokens)
        steps += 1
        running |= {number: requests[number].answer for number in joining}
        running = {number: left - 1 for number, left in running.items() if left > 1}


def replay_decisions(load: AdmissionLoad, rounds: Mapping[int, tuple[int, str]]) -> AdmissionResult:
    """The same play by the decisions that were made, wherever they were made."""

    def decide(state: Mapping[str, Any]) -> str:
        at, decision = rounds.get(state["number"], (-1, WAIT))
        return decision if at == state["round"] else WAIT

    return play_load(load, decide)
