"""Sick schedulers, and runs of them: a load made from a seed, in virtual time on the scheduler itself.

A fault is a file: the `Scheduler` that has it, and `shows(steps)`, the steps of a log that show it. A real server gets
the same file (`labctl.mystery`). What a virtual run models is the time: a step takes as long as the model of a GPU says
(:mod:`labsched.pace`), or as the engine needs if that is longer, and then the host's own moment, which is now
and then a long one.
"""

from __future__ import annotations

import ast
import importlib.util
import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labkit.predict.field import PlayingField
from labsched.account import Account
from labsched.contexts import Contexts
from labsched.pace import StepWork
from labsched.recording import Arrival, StepRow
from labsched.replay import Replay, line_of, scheduler_of
from labsched.scheduler import Scheduler
from labsched.step import Step

Line = Mapping[str, Any]
HEALTHY = "healthy"  # the file of that name has no fault
GROUND = PlayingField(slots=8, blocks=22, block_size=32, step_tokens=128)
SLOWER = 5.0  # the server's steps take this many times as long as on that GPU
TENANTS = ("ada", "ada", "bob")  # ada sends two requests for each of bob's
NONE: Mapping[str, Any] = {  # fields that a log leaves out when they are empty
    **{name: [] for name in ("waiting", "joined", "evicted")},
    **{name: {} for name in ("because", "ended", "tenants")},
    **dict.fromkeys(("why", "replica"), ""),
}


@dataclass(frozen=True)
class Fault:
    """One file of ``labs/extras/mysteries/``.

    Attributes:
        shows: the steps of a log that show it.
        sign: what these steps have in common, in words; "" if no step shows it.
        least: the number of such steps that makes a server sick.
        replicas: servers that are needed to see it.
        counters: bounds (at least, at most; None is none) for the value of a metric: a counter's for each step, a
            histogram's mean.
    """

    name: str
    summary: str
    source: str
    kind: type[Scheduler]
    shows: Callable[[Sequence[Line]], Sequence[Line]]
    sign: str = ""
    least: int = 1
    replicas: int = 1
    counters: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)

    def sick(self, steps: Sequence[Line]) -> bool:
        """The reference detector."""
        return len(self.shows(steps)) >= self.least

    def within(self, counter: str, value: float) -> bool:
        """Whether a metric's value shows the fault."""
        least, most = self.counters[counter]
        return (least is None or value >= least) and (most is None or value <= most)


def load_fault(path: Path) -> Fault:
    """The fault of a file; of HEALTHY one that nothing shows."""
    spec = importlib.util.spec_from_file_location(f"mystery_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = path.read_text(encoding="utf-8")
    optional = {
        name.lower(): value for name, value in vars(module).items() if name in ("LEAST", "REPLICAS", "COUNTERS")
    }
    summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
    shows: Callable[[Sequence[Line]], Sequence[Line]] = getattr(module, "shows", lambda steps: [])
    sign = " ".join((shows.__doc__ or "").split())
    return Fault(path.stem, summary, source, module.Scheduler, shows, sign, **optional)


def expand_steps(lines: Sequence[Line]) -> list[Line]:
    """The steps among the lines of a log, with what it leaves out."""
    return [{**NONE, **line} for line in lines if line.get("kind") == "step"]


# -- the load ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestPhase:
    """Requests, ``in_flight`` of them at a time. The client of a ``cancelled`` one leaves after ``made`` tokens."""

    in_flight: int
    requests: Sequence[Arrival]


def make_phases(seed: str) -> list[RequestPhase]:
    """Long answers that fill the memory together, then requests of all kinds, and at last few at a time."""
    rng = random.Random(seed)
    long = [_request(rng, (8, 16, 24), (96, 112, 128)) for _ in range(24)]
    mixed = [_request(rng, (8, 16, 30, 60, 120, 200), (8, 16, 24, 40, 64)) for _ in range(44)]
    return [RequestPhase(16, long), RequestPhase(16, mixed[:32]), RequestPhase(4, mixed[32:])]


def _request(rng: random.Random, prompts: Sequence[int], limits: Sequence[int]) -> Arrival:
    leaves = rng.random() < 0.15
    name = f"{rng.randrange(16**6):06x}-{rng.choice(TENANTS)}"
    prompt, limit = rng.choice(prompts), 128 if leaves else rng.choice(limits)
    if leaves:
        return Arrival(name, 0.0, 0, prompt, limit, rng.randint(4, 12), "cancelled", math.inf, tenant=name[7:])
    return Arrival(name, 0.0, 0, prompt, limit, limit, "length", tenant=name[7:])


# -- a run in virtual time --------------------------------------------------------------------------------------------


class _Run:
    """One server under its share of the load."""

    def __init__(self, kind: type[Scheduler], rng: random.Random, replica: str) -> None:
        self.lines: list[Line] = []
        self._rng, self._replica, self._contexts = rng, replica, Contexts()
        self._late = 0.0  # seconds that the scheduler has slept in this step
        scheduler = scheduler_of(GROUND.settings([]), kind)
        vars(scheduler).update(sleep=self._sleep, replica=replica)  # a fault that takes time has these
        self._replay = Replay(scheduler, [], self._seconds, seen=self._take_step)
        self._gone: dict[str, str] = {}

    def play(self, phases: Sequence[RequestPhase]) -> list[Line]:
        replay, arrivals = self._replay, list[Arrival]()
        replay.arrivals = arrivals
        for phase in phases:
            replay.in_flight = phase.in_flight
            arrivals += phase.requests
            while not replay.over:
                replay.advance()
                self._leave()
        return self.lines

    def _sleep(self, seconds: float) -> None:
        self._late += seconds

    def _leave(self) -> None:
        """Clients go when they have had enough tokens; the server looks twice a second whether they are there."""
        for name, (request, arrival) in list(self._replay.live.items()):
            if arrival.cancelled and len(request.output) >= arrival.made and self._rng.random() < 0.1:
                self._replay.scheduler.cancel(request)
                del self._replay.live[name]
                self._gone[name] = "cancelled"

    def _seconds(self, row: StepRow) -> float:
        work = [StepWork(*pair) for pair in zip(row.tokens, self._contexts.each(row), strict=True)]
        self._paced = GROUND.pace.seconds(work) * SLOWER
        self._engine = self._paced * self._rng.lognormvariate(-1.5, 0.6)
        host = self._rng.lognormvariate(-7.5, 0.8) + (self._rng.random() < 0.01) * self._rng.uniform(0.01, 0.06)
        late, self._late = self._late, 0.0
        return max(self._paced, self._engine) + host + late

    def _take_step(self, step: Step) -> None:
        row, gone = self._replay.rows[-1], self._gone
        times = {"n": len(self.lines) + 1, "t": row.over, "dur": row.over - row.began, "replica": self._replica}
        engine = {"engine_us": round(self._engine * 1e6), "paced_us": round(self._paced * 1e6)}
        ended = {**gone, **{request.name: request.why for request in step.ended if request.name in self._replay.live}}
        self._gone = {}
        scheduler = self._replay.scheduler
        counts = {
            "prefill": step.prefill,
            "decode": len(step.batch) - step.prefill,
            "admitted": len(step.admitted),
            "preempted": len(step.preempted),
            "slots_used": scheduler.slots.used,
        }
        line = {**line_of(step, scheduler), **Account(scheduler.features).line(step), **counts}
        self.lines.append({**line, **times, **engine, "ended": ended})


def record_fault(fault: Fault, seed: str) -> list[Line]:
    """The steps of a run of a server with the fault. Several servers get the requests in turn."""
    phases, count = make_phases(seed), fault.replicas
    lines: list[Line] = []
    for number in range(count):
        part = [RequestPhase(phase.in_flight // count, phase.requests[number::count]) for phase in phases]
        rng = random.Random(f"{seed} {number}")
        lines += _Run(fault.kind, rng, str(number + 1) if count > 1 else "").play(part)
    return sorted(lines, key=lambda line: line["t"]) if count > 1 else lines


def count_step_metrics(steps: Sequence[Line]) -> dict[str, float]:
    """The metrics that a log has, for each step."""
    totals = Counter[str]()
    for step in steps:
        totals["labs_tokens_total"] += sum(step["made"])
        totals["labs_admissions_total"] += len(step["joined"])
        totals["labs_preemptions_total"] += len(step["evicted"])
    return {name: total / len(steps) for name, total in totals.items()}
