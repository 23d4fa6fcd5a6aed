"""Lab 05's exercises on an engine that counts: the hook for a scheduler of one's own, the margins of the checks."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from counting_engine import CountingEngine
from machinery import ROOT

from labserve.inflight.kv_budget import KVBudget
from labserve.inflight.own import scheduler_beside, with_line
from labserve.inflight.scheduler import Job, Policy, Scheduler, Turn
from labserve.params import Refusal

EXERCISES = ROOT / "labs" / "05-batching-policies" / "exercises"
JOIN, ROOM, PREDICT = "05a-join-at-every-step", "05b-leave-room-to-grow", "05c-predict-the-batch"
SEEDS = range(12)


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
def test_05a_is_far_from_its_limit_of_steps(seed: int) -> None:
    requests = module(EXERCISES / JOIN / "check.py").requests_of(random.Random(seed))
    limits = [limit for _, limit in requests]
    static = sum(max(limits[n : n + 4]) for n in range(0, len(limits), 4))
    kind = module(EXERCISES / JOIN / "solution" / "scheduler.py").Scheduler
    assert len(turns(kind, requests, 32, Policy.GUARANTEED_NO_EVICT, 4)) < 0.65 * static


@pytest.mark.parametrize("seed", SEEDS)
def test_05b_is_far_from_its_limit_of_evictions(seed: int) -> None:
    check = module(EXERCISES / ROOM / "check.py")
    requests = check.requests_of(random.Random(seed))
    counts = {}
    for answer in ("starter", "solution"):
        kind = module(EXERCISES / ROOM / answer / "scheduler.py").Scheduler
        done = turns(kind, requests, 8, Policy.MAX_UTILIZATION, 16)
        counts[answer] = sum(len(turn.preempted) for turn in done)
    assert counts["solution"] + 1 < check.EVICTIONS < counts["starter"] - 1


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", list(Policy))
def test_05cs_solution_predicts_the_scheduler_exactly(seed: int, policy: Policy) -> None:
    rng = random.Random(seed)
    lengths = [(rng.randint(20, 31), rng.randint(40, 80)) for _ in range(12)]
    done = turns(Scheduler, [(range(prompt), limit) for prompt, limit in lengths], 8, policy, 16)
    predict = module(EXERCISES / PREDICT / "solution" / "predict.py").predict
    mean = sum(len(turn.batch) for turn in done) / len(done)
    assert predict(8, 32, lengths, policy.value) == (mean, sum(len(turn.preempted) for turn in done))
