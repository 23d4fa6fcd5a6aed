"""Lab 05's exercises on an engine that counts: the hook for a scheduler of one's own, the margins of the checks."""

from __future__ import annotations

import importlib.util
import json
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from counting_engine import CountingEngine
from machinery import ROOT

from labctl.learn import gate
from labctl.learn.exercise import Exercise, find_all
from labctl.manifest.catalog import load
from labctl.workspace import Workspace
from labserve.inflight.job import Job, Turn
from labserve.inflight.kv_budget import KVBudget
from labserve.inflight.own import scheduler_beside, with_line
from labserve.inflight.policy import Policy
from labserve.inflight.scheduler import Scheduler
from labserve.params import Refusal

WORKSPACE = Workspace(ROOT, ROOT / ".cache")
EXERCISES = [e for e in find_all(WORKSPACE, load(WORKSPACE)) if e.manifest.stack == "inflight-batching"]
ATTEMPTS = [(exercise, attempt) for exercise in EXERCISES for attempt in gate.attempts(exercise)]
SEEDS = range(1, 1 + int(os.environ.get("LABS_SEEDS", "3")))
POLICY = "batch_scheduler_policy"


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("of_the_exercise", path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def turns(
    kind: type[Scheduler], requests: Sequence[tuple[Sequence[int], int]], blocks: int, policy: Policy, places: int
) -> list[Turn]:
    scheduler = kind(CountingEngine(), KVBudget(blocks, 32), policy, places, static=False)
    for number, (prompt, limit) in enumerate(requests):
        scheduler.submit(Job(str(number), list(prompt), limit))
    done = []
    while not scheduler.idle:
        done.append(scheduler.turn())
        assert len(done) < 5000, "it does not end"
    return [turn for turn in done if turn.batch]


@dataclass
class Step:
    """A turn, as the step log has it."""

    turn: Turn

    @property
    def ids(self) -> list[str]:
        return [job.id for job in self.turn.batch]

    @property
    def batch(self) -> int:
        return len(self.turn.batch)

    @property
    def more(self) -> dict[str, int]:
        return {"preempted": len(self.turn.preempted)}


@dataclass
class Record:
    """An answer of the counting engine."""

    id: str
    tokens: int
    text: str


class CountingTrial:
    """What lab 05's checks use of a trial, on an engine that counts."""

    def __init__(self, exercise: Exercise, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.checks: list[tuple[bool, str]] = []
        self._folder, self._set = folder, {POLICY: "guaranteed_no_evict"} | exercise.manifest.settings

    def queued(self, requests: Sequence[tuple[Sequence[int], int]]) -> tuple[list[Record], list[Step]]:
        blocks, places = self._set["max_tokens_in_paged_kv_cache"] // 32, self._set["max_num_sequences"]
        done = turns(scheduler_beside(self._folder), requests, blocks, Policy(self._set[POLICY]), places)
        jobs = {job.id: job for turn in done for job in turn.batch}
        found = [jobs[str(number)] for number in range(len(requests))]
        return [Record(job.id, len(job.output), str(job.output)) for job in found], [Step(turn) for turn in done]

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        return json.loads(json.dumps(getattr(module(self._folder / script), function)(*arguments)))

    def parameters(self, model: str) -> dict[str, str]:
        return {POLICY: self._set[POLICY]}

    def load_with(self, model: str, **parameters: str) -> None:
        self._set |= parameters

    def expect(self, name: str, expected: str, measured: object, ok: bool, sentence: str) -> bool:
        self.checks.append((ok, sentence))
        return ok


def own(folder: Path, body: str) -> Path:
    (folder / "scheduler.py").write_text(
        f"from labserve.inflight import scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n{body}\n"
    )
    return folder


def test_a_scheduler_beside_the_model_decides_and_without_one_the_shipped_does(tmp_path: Path) -> None:
    assert scheduler_beside(tmp_path) is Scheduler
    kind = scheduler_beside(own(tmp_path, "    @property\n    def places(self):\n        return 1"))
    requests = [([1, 2], 5), ([1, 2], 5), ([1, 2], 5)]
    assert [len(turn.batch) for turn in turns(kind, requests, 32, Policy.GUARANTEED_NO_EVICT, 4)][:3] == [1, 2, 3]


def test_a_file_without_a_scheduler_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "scheduler.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"scheduler\.py: it needs a class Scheduler"):
        scheduler_beside(tmp_path)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "    def reserve(self):\n        return 1 / 0",
            r"^scheduler\.py, line 6: ZeroDivisionError: division by zero$",
        ),
        ("    def reserve(self):\n        pass", r"^TypeError: .* \(what do places, reserve and victim .* return\?\)$"),
    ],
)
def test_an_error_of_ones_own_scheduler_is_told_with_its_line(tmp_path: Path, body: str, said: str) -> None:
    kind = scheduler_beside(own(tmp_path, body))
    with pytest.raises((ZeroDivisionError, TypeError)) as caught:
        turns(kind, [([1], 1)], 4, Policy.MAX_UTILIZATION, 4)
    told = with_line(caught.value, tmp_path)
    assert isinstance(told, Refusal)
    with pytest.raises(Refusal, match=said):
        raise told


def test_an_error_without_such_a_file_stays_as_it_is(tmp_path: Path) -> None:
    error = RuntimeError("the engine")
    assert with_line(error, tmp_path) is error


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("exercise", "attempt"), ATTEMPTS, ids=lambda value: getattr(value, "name", None) or value.id)
def test_every_answer_is_judged_as_foreseen(exercise: Exercise, attempt: gate.Attempt, seed: int) -> None:
    """With all requests there at the beginning a seed decides every step: what holds here holds on a server."""
    trial = CountingTrial(exercise, attempt.folder, seed)
    module(exercise.folder / "check.py").check(trial)
    failed = [sentence for ok, sentence in trial.checks if not ok]
    assert failed[:1] == ([attempt.says] if attempt.says else [])
