"""Admission before an engine that takes every request: a gate that admits, rejects or holds, in counted time.

The engine computes a request's whole prompt in the step in which it joins, and this step makes its first token; each
later step makes one more. That is what every engine here does whose memory and token budget are large enough. So the
gate can be played without the engine, and the engine be sent what the gate let through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from labsched.costs import StepCosts
from labsched.counting import CountingEngine
from labsched.kv_budget import KVBudget
from labsched.policy import Policy
from labsched.replay.counted_time import Latency, latencies, time_by
from labsched.replay.player import Replay
from labsched.replay.recording import Arrival
from labsched.replay.slo import Slo
from labsched.scheduler import Scheduler

ADMIT, REJECT, WAIT = "admit", "reject", "wait"
FUNCTION = "admit"
Decide = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class AdmissionLoad:
    """Requests in order of arrival, named by their place (their times are milliseconds), the cost of a step, and the
    limits.
    """

    requests: Sequence[Arrival]
    cost: StepCosts
    slo: Slo


class GateDecision(NamedTuple):
    """The gate's last word on a request.

    Attributes:
        round: the round of questions in which it was given: there is one before each step.
        word: ADMIT or REJECT.
        at: milliseconds.
        after: steps that the engine had computed.
        running: requests that ran or joined then.
    """

    round: int
    word: str
    at: float
    after: int
    running: int


class GatedReplay(Replay):
    """Play a load whose requests stand before a gate, which is asked about each that it holds before each step.

    Attributes:
        decisions: by the request's place in the load. A request that was held to the end has none.
    """

    def __init__(self, load: AdmissionLoad, decide: Decide) -> None:
        super().__init__(_unlimited(load.requests), load.requests, time_by(load.cost))
        self.load, self.decisions = load, dict[int, GateDecision]()
        self._decide, self._held = decide, list[Arrival]()
        self._round = self._asked_at = 0

    @property
    def over(self) -> bool:
        """Whether every request has ended, or is held although nothing runs and none comes any more."""
        return super().over and (not self._held or self._asked_at == self.steps_over)

    def latencies(self) -> dict[int, Latency]:
        """Return the times of each admitted request since it came to the gate, by its place in the load."""
        admitted = [name for name in self.arrived if self._word(name) == ADMIT]
        times = latencies(self.steps, {name: self.arrived[name] for name in admitted})
        return dict(zip(map(int, admitted), times, strict=True))

    def _word(self, name: str) -> str:
        decision = self.decisions.get(int(name))
        return decision.word if decision else WAIT

    def _submit(self, arrival: Arrival) -> None:
        self._held.append(arrival)

    def _receive(self) -> None:
        super()._receive()
        held, self._held, joining = self._held, [], list[Arrival]()
        running = len(self.scheduler.running)
        for arrival in held:
            state = self._state(arrival, running, joining)
            word = self._decide(state)
            if word not in (ADMIT, REJECT, WAIT):
                raise ValueError(f"{FUNCTION} returned {word!r}: it returns {ADMIT!r}, {REJECT!r} or {WAIT!r}")
            if word == WAIT:
                self._held.append(arrival)
                continue
            self.decisions[int(arrival.name)] = GateDecision(
                self._round, word, self.now, self.steps_over, running + len(joining)
            )
            if word == ADMIT:
                super()._submit(arrival)
                joining.append(arrival)
        self._round += 1
        self._asked_at = self.steps_over

    def _state(self, arrival: Arrival, running: int, joining: Sequence[Arrival]) -> dict[str, Any]:
        """What ``decide`` is told about a request."""
        cost, slo = self.load.cost, self.load.slo
        return {
            "number": int(arrival.name),
            "round": self._round,
            "now": self.now,
            "arrived": arrival.at,
            "prompt": arrival.prompt,
            "answer": arrival.limit,
            "running": running + len(joining),
            "ahead": len(self._held),
            "joining_tokens": sum(other.prompt for other in joining),
            "step_ms": cost.step,
            "decode_ms": cost.decoding,
            "prompt_token_ms": cost.token,
            "ttft_ms": slo.ttft,
            "tpot_ms": slo.tpot,
        }


def _unlimited(requests: Sequence[Arrival]) -> Scheduler:
    """Make a scheduler over an engine that has room for all of these requests at once."""
    tokens = sum(request.prompt + request.limit for request in requests)
    engine = CountingEngine(tokens, finishes=False)
    engine.scheduler = Scheduler(engine, KVBudget(tokens, 1), Policy.GUARANTEED_NO_EVICT, len(requests), static=False)
    return engine.scheduler


def play_load(load: AdmissionLoad, decide: Decide) -> GatedReplay:
    """Let ``decide`` answer for each held request, in order of arrival, before each step.

    Raises ValueError: it answers something else than the three words.
    """
    played = GatedReplay(load, decide)
    played.run()
    return played


def replay_decisions(load: AdmissionLoad, rounds: Mapping[int, tuple[int, str]]) -> GatedReplay:
    """Play the same load by the decisions that were made, wherever they were made: each with its round."""

    def decide(state: Mapping[str, Any]) -> str:
        at, decision = rounds.get(state["number"], (-1, WAIT))
        return decision if at == state["round"] else WAIT

    return play_load(load, decide)
