"""Triton's counters beside the models' own step logs, and a sentence for each reason why they differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labctl.pages.live.events import ModelCounts
from labctl.pages.live.lines import CHANGE
from labctl.replicas.signals import GoodputMeter
from labkit.client.metrics import ModelCounters, Snapshot

FAR = 1.5  # counts that differ by this factor are worth a sentence


@dataclass
class _Done:
    """One model's work by its step log."""

    steps: int = 0
    members: int = 0
    ended: int = 0
    waiting: int = 0
    firsts: list[float] = field(default_factory=list)  # seconds to the first response, as this page's requests saw it


class LiveCounters:
    """Both sides since the page was opened, or since the server was started again."""

    def __init__(self) -> None:
        self._base: Snapshot | None = None
        self._last = Snapshot()
        self._now = Snapshot()
        self._done: dict[str, _Done] = defaultdict(_Done)
        self._goodput = GoodputMeter()

    def count(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Count new steps. Before the first snapshot they do not count."""
        if self._base is None:
            return
        for line in lines:
            done = self._done[line["model"]]
            done.steps += line.get("kind") != CHANGE
            done.members += len(line["ids"])
            done.ended += len(line.get("ended", ()))
            done.waiting = line.get("queue", 0)

    def first_response(self, model: str, seconds: float) -> None:
        """A request of this page had its first response."""
        self._done[model].firsts.append(seconds)

    def snapshot(self, snapshot: Snapshot) -> None:
        """Take Triton's present counters. A restarted server counts from 0: then both sides start over."""
        if _is_younger(snapshot, self._last):
            self._base = snapshot
            self._done.clear()
        self._base, self._last = self._base or snapshot, snapshot
        self._now = snapshot.since(self._base)
        self._goodput.take(snapshot)

    def rows(self) -> list[ModelCounts]:
        """For each model that did something: facts as (what, Triton's, the model's), and the sentences."""
        rows: list[ModelCounts] = []
        for model, done in sorted(self._done.items()):
            triton = self._now.models.get(model)
            if triton is None or not (triton.exec_count or done.steps):
                continue
            batch = done.members / done.steps if done.steps else 0.0
            facts = [
                ("requests done", f"{triton.succeeded:.0f}", f"{done.ended}" if done.ended else "–"),
                ("executions, steps", f"{triton.exec_count:.0f}", f"{done.steps}"),
                ("mean batch", f"{triton.mean_batch:.1f}", f"{batch:.1f}"),
                ("waiting now", f"{triton.pending:.0f}", f"{done.waiting}"),
                *self._goodput.facts(model),
            ]
            if done.firsts:
                mean = sum(done.firsts) / len(done.firsts)
                facts.append(("mean request, first response", _seconds(_mean_s(triton)), _seconds(mean)))
            rows.append({"model": model, "facts": facts, "notes": _difference_notes(triton, done, batch)})
        return rows


def _is_younger(now: Snapshot, before: Snapshot) -> bool:
    """Whether some counter went back."""
    none = ModelCounters()
    return any(now.models.get(name, none).exec_count < old.exec_count for name, old in before.models.items())


def _difference_notes(triton: ModelCounters, done: _Done, batch: float) -> list[str]:
    """Why the two sides differ, where they do."""
    notes = []
    executions, steps = triton.exec_count, done.steps
    own_loop = steps and batch > FAR * max(1.0, triton.mean_batch)
    if executions and steps > FAR * executions and not own_loop:
        notes.append(f"Triton counts a batch as one execution; the model made {steps / executions:.0f} steps in each.")
    if executions and steps and executions > FAR * steps:
        notes.append("Triton counts an execution for each hand-over; the model's own loop takes several into one step.")
    if steps and steps <= FAR * executions and triton.mean_batch > FAR * batch:  # it is handed each batch for one step
        notes.append(
            f"Triton counts {triton.mean_batch:.1f} requests in an execution, including requests that the model gives "
            f"back unserved because they do not fit. A step serves {batch:.1f}."
        )
    given_back = triton.succeeded > FAR * max(1, done.ended) and not own_loop
    if given_back and (done.ended or (steps and executions * FAR > steps)):
        notes.append("Triton counts a request each time that the model gives it back to be scheduled again.")
    if own_loop:
        notes.append(
            f"Triton sees batches of {triton.mean_batch:.1f}; in the model's own loop {batch:.1f} run together."
        )
    if done.firsts and triton.succeeded:
        first, counted = sum(done.firsts) / len(done.firsts), _mean_s(triton)
        if counted * FAR < first:
            notes.append(
                f"Triton calls a request done after {_seconds(counted)}, when it has handed it over; its first "
                f"response came after {_seconds(first)}."
            )
    return notes


def _mean_s(triton: ModelCounters) -> float:
    """Seconds of a request, as Triton counts them."""
    return triton.request_us / triton.succeeded / 1e6 if triton.succeeded else 0.0


def _seconds(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
