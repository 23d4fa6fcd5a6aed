"""Schedulers and orders of one's own (labs 05 and 06) on an engine that counts: the hook, the margins of the checks."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from counting_engine import CountingEngine
from machinery import ROOT

from labctl.learn.exercise import Exercise, find_exercises
from labctl.manifest.catalog import load_catalog
from labctl.workspace import Workspace
from labsched.counting import KnownAnswer
from labsched.kv_budget import KVBudget
from labsched.own import scheduler_beside, with_line
from labsched.policy import Policy
from labsched.recording import SchedulerSettings
from labsched.replay import scheduler_of
from labsched.request import Request
from labsched.scheduler import Scheduler
from labsched.step import Step
from labserve.params import Refusal

WORKSPACE = Workspace(ROOT, ROOT / ".cache")
EXERCISES = [e for e in find_exercises(WORKSPACE, load_catalog(WORKSPACE)) if e.lab.number == "05" or e.id == "06b"]
POLICY, BLOCKS = "batch_scheduler_policy", "max_tokens_in_paged_kv_cache"
WORDS = {  # what config.pbtxt says where an exercise sets nothing
    POLICY: "guaranteed_no_evict",
    "engine": "openvino",
    "gpt_model_type": "inflight_fused_batching",
    "max_num_tokens": "256",
    "enable_chunked_context": "true",
    "enable_kv_cache_reuse": "false",
    "scheduling": "fcfs",
}


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("of_the_exercise", path)
    assert spec and spec.loader
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def turns(
    kind: type[Scheduler], requests: Sequence[tuple[Sequence[int], int]], blocks: int, policy: Policy, places: int
) -> list[Step]:
    scheduler = kind(CountingEngine(), KVBudget(blocks, 32), policy, places, static=False)
    return played(scheduler, [Request(str(n), list(prompt), limit) for n, (prompt, limit) in enumerate(requests)])


def played(scheduler: Scheduler, jobs: Sequence[Request], later: Sequence[tuple[int, Request]] = ()) -> list[Step]:
    """The turns until all are done; ``later`` are jobs that arrive after a number of turns."""
    for job in jobs:
        scheduler.submit(job)
    done: list[Step] = []
    coming = list(later)
    while coming or not scheduler.idle:
        while coming and coming[0][0] <= len(done):
            scheduler.submit(coming.pop(0)[1])
        done.append(scheduler.step())
        assert len(done) < 5000, "it does not end"
    return [turn for turn in done if turn.batch]


@dataclass
class Logged:
    """A step, as the step log has it."""

    turn: Step

    @property
    def ids(self) -> list[str]:
        return [job.id for job in self.turn.batch]

    @property
    def batch(self) -> int:
        return len(self.turn.batch)

    @property
    def more(self) -> dict[str, Any]:
        made = {job.id: len(tokens) for job, tokens in self.turn.produced}
        return {
            "preempted": len(self.turn.preempted),
            "phase": self.turn.phase,
            "tokens": self.turn.computed,
            "made": [made.get(id, 0) for id in self.ids],
            "waiting": [job.id for job in self.turn.waiting],
        }


@dataclass
class Record:
    """An answer of the counting engine."""

    id: str
    tokens: int
    text: str


class CountingTrial:
    """What the checks of a batching engine use of a trial, on an engine that counts."""

    def __init__(self, exercise: Exercise, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.checks: list[tuple[bool, str]] = []
        self.folder, self._set = folder, WORDS | {key: str(word) for key, word in exercise.manifest.settings.items()}
        self._count = 0
        self._load()

    def _load(self) -> None:
        blocks, step_tokens = int(self._set[BLOCKS]) // 32, int(self._set["max_num_tokens"])
        settings = SchedulerSettings(self._set, blocks, 32, step_tokens, 2048, 2000)
        self._scheduler = scheduler_of(settings, scheduler_beside(self.folder))

    def send_queued(
        self, requests: Sequence[Any], later: Sequence[tuple[int, Any]] = ()
    ) -> tuple[list[Record], list[Logged]]:
        jobs = [self._job(request) for request in requests]
        others = [(after, self._job(request)) for after, request in later]
        done = played(self._scheduler, jobs, others)
        found = [*jobs, *(job for _, job in others)]
        return [Record(job.id, len(job.output), str(job.output)) for job in found], [Logged(turn) for turn in done]

    def _job(self, request: Any) -> Request:
        self._count += 1
        prompt, limit = list(request[0]), request[1]
        answer: Any = KnownAnswer([*range(len(prompt), len(prompt) + limit)], word=False, resumable=True)
        job = Request(str(self._count), prompt, limit, answer)
        job.tenant = request[2]["tenant"] if len(request) > 2 else ""
        return job

    def call(self, script: str, function: str, *arguments: Any) -> Any:
        return json.loads(json.dumps(getattr(module(self.folder / script), function)(*arguments)))

    def parameters(self, model: str) -> dict[str, str]:
        return dict(self._set)

    def load_with(self, model: str, **parameters: str) -> None:
        self._set |= parameters
        self._load()

    def expect(self, name: str, expected: str, measured: object, ok: bool, sentence: str) -> bool:
        self.checks.append((ok, sentence))
        return ok


def own(folder: Path, body: str) -> Path:
    (folder / "scheduler.py").write_text(
        f"from labsched import scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n{body}\n"
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


ROOM = "sum(self.kv.needed(len(job.prompt) + job.limit) - self.kv.needed(job.tokens) for job in self.running)"
SENSIBLE_RESERVES = {
    "half of what the others may still need": f"{ROOM} // 2",
    "half of it, rounded up": f"-(-{ROOM} // 2)",
    "one block for each that will want one": "sum(self.kv.needed(len(j.prompt) + j.limit) > self.kv.needed(j.tokens)"
    " for j in self.running)",
    "one more than there are": "len(self.running) + 1",
}
FAIR = """from labsched import order, scheduler


class Fair(order.Order):
    def __init__(self):
        self.served = {{}}

    def arrived(self, job, waiting):
        tenants = {{other.tenant for other in waiting}} - {{job.tenant}}
        here = any(other.tenant == job.tenant for other in waiting)
        mine = self.served.setdefault(job.tenant, 0)
        if tenants and not here:
            self.served[job.tenant] = max(mine, min(self.served[tenant] for tenant in tenants))

    def line(self, waiting):
        {line}

    def joined(self, job, waiting):
        self.served[job.tenant] += {joined}

    def made(self, job, tokens):
        self.served[job.tenant] += {made}


class Scheduler(scheduler.Scheduler):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.order = Fair()
"""
SORTED = "return sorted(waiting, key=lambda job: self.served[job.tenant])"
SENSIBLE_ORDERS = {
    "names only the next": (
        "return [min(waiting, key=lambda job: self.served[job.tenant])]",
        "len(job.prompt)",
        "2 * tokens",
    ),
    "pays for its answer at once": (SORTED, "len(job.prompt) + 2 * job.limit", "0"),
    "counts in halves": (SORTED, "len(job.prompt) / 2", "tokens"),
}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", SENSIBLE_RESERVES)
def test_a_sensible_reserve_passes_with_every_seed(tmp_path: Path, name: str, seed: int) -> None:
    own(tmp_path, f"    def reserve(self):\n        return {SENSIBLE_RESERVES[name]}")
    assert failures("05b", tmp_path, seed) == []


@pytest.mark.parametrize("name", SENSIBLE_ORDERS)
def test_a_sensible_order_passes(tmp_path: Path, name: str) -> None:
    line, joined, made = SENSIBLE_ORDERS[name]
    (tmp_path / "scheduler.py").write_text(FAIR.format(line=line, joined=joined, made=made))
    assert failures("06b", tmp_path, 1) == []


def test_a_line_that_names_only_the_next_is_made_whole_and_is_not_asked_of_nobody(tmp_path: Path) -> None:
    """``min(waiting)`` of an empty queue would raise; and a log without the others would look like a busy machine."""
    kind = scheduler_beside(
        own(tmp_path, "    def line(self):\n        return [min(self.waiting, key=lambda j: -j.came)]")
    )
    done = turns(kind, [([1, 2], 3)] * 4, 32, Policy.GUARANTEED_NO_EVICT, 1)
    assert [job.id for job in done[0].waiting] == ["2", "0", "1"]
    assert [turn.batch[0].id for turn in done[::3]] == ["3", "2", "1", "0"]


def failures(id: str, folder: Path, seed: int) -> list[str]:
    exercise = next(exercise for exercise in EXERCISES if exercise.id == id)
    trial = CountingTrial(exercise, folder, seed)
    module(exercise.folder / "check.py").check(trial)
    return [sentence for ok, sentence in trial.checks if not ok]
