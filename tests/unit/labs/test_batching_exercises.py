"""Schedulers and orders of one's own (labs 05 and 06) on an engine that counts: the hook, the margins of the checks."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from counting_trial import WORDS, CountingTrial, arrival
from exercise_cases import EXERCISES

from labctl.learn.attempts import Attempt, exercise_attempts
from labctl.learn.exercise import find_exercise
from labsched.counting import CountingEngine
from labsched.log.settings import SchedulerSettings
from labsched.own import scheduler_beside, with_line
from labsched.replay.player import Replay, scheduler_of
from labsched.request import Request
from labsched.scheduler import Scheduler
from labsched.step import Step
from labserve.params import Refusal


def replayed(kind: type[Scheduler], requests: Sequence[tuple[int, int]], blocks: int = 32, **words: str) -> list[Step]:
    """The steps that serve requests of so many tokens and so many to make, all of which are there at first."""
    scheduler = scheduler_of(SchedulerSettings(WORDS | words, blocks, 32, 256, 2048, 2000), kind)
    return Replay(scheduler, [arrival(n, 0, prompt, made) for n, (prompt, made) in enumerate(requests)]).run()


def own(folder: Path, body: str) -> Path:
    (folder / "scheduler.py").write_text(
        f"from labsched import scheduler\n\n\nclass Scheduler(scheduler.Scheduler):\n{body}\n"
    )
    return folder


def test_a_scheduler_beside_the_model_decides_and_without_one_the_shipped_does(tmp_path: Path) -> None:
    assert scheduler_beside(tmp_path) is Scheduler
    kind = scheduler_beside(own(tmp_path, "    @property\n    def places(self):\n        return 1"))
    assert [row.batch for row in replayed(kind, [(2, 5)] * 3)][:3] == [1, 2, 3]


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
        (
            "    def reserve(self):\n        pass",
            r"^TypeError: .* \(what do places, reserve, victim and share .* return\?\)$",
        ),
    ],
)
def test_an_error_of_ones_own_scheduler_is_told_with_its_line(tmp_path: Path, body: str, said: str) -> None:
    kind = scheduler_beside(own(tmp_path, body))
    with pytest.raises((ZeroDivisionError, TypeError)) as caught:
        replayed(kind, [(1, 1)], blocks=4, batch_scheduler_policy="max_utilization")
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


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.night) for seed in (2, 3))])
@pytest.mark.parametrize("name", SENSIBLE_RESERVES)
def test_a_sensible_reserve_passes_with_every_seed(tmp_path: Path, name: str, seed: int) -> None:
    own(tmp_path, f"    def reserve(self):\n        return {SENSIBLE_RESERVES[name]}")
    assert failures("05b", tmp_path, seed) == []


@pytest.mark.parametrize(
    "name",
    [name if not place else pytest.param(name, marks=pytest.mark.night) for place, name in enumerate(SENSIBLE_ORDERS)],
)
def test_a_sensible_order_passes(tmp_path: Path, name: str) -> None:
    line, joined, made = SENSIBLE_ORDERS[name]
    (tmp_path / "scheduler.py").write_text(FAIR.format(line=line, joined=joined, made=made))
    assert failures("06b", tmp_path, 1) == []


def test_a_line_that_names_only_the_next_is_made_whole_and_is_not_asked_of_nobody(tmp_path: Path) -> None:
    """``min(waiting)`` of an empty queue would raise; and a log without the others would look like a busy machine."""
    kind = scheduler_beside(
        own(tmp_path, "    def line(self):\n        return [min(self.waiting, key=lambda j: -j.came)]")
    )
    done = replayed(kind, [(2, 3)] * 4, max_num_sequences="1")
    assert done[0].waiting == ["2", "0", "1"]
    assert [row.ids for row in done[::3]] == [["3"], ["2"], ["1"], ["0"]]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "attempt", [*exercise_attempts(find_exercise(EXERCISES, "05a"))], ids=lambda attempt: attempt.name
)
def test_joining_at_every_step_is_judged_as_foreseen(tmp_path: Path, attempt: Attempt, seed: int) -> None:
    for name, text in attempt.files.items():
        (tmp_path / name).write_text(text)
    assert failures("05a", tmp_path, seed)[:1] == ([attempt.says] if attempt.says else [])


def failures(id: str, folder: Path, seed: int) -> list[str]:
    exercise = find_exercise(EXERCISES, id)
    trial = CountingTrial(exercise, folder, seed)
    runpy.run_path(str(exercise.folder / "check.py"))["check"](trial)
    return [sentence for ok, sentence in trial.checks if not ok]


class Computing:
    """An engine that shares a step's tokens by itself, as one that computes does."""

    def __init__(self, engine: CountingEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def first_step(kind: type[Scheduler], prompts: Sequence[int], computes: bool = False) -> list[int]:
    """The tokens that the first step computes of these prompts, with a budget of 32."""
    scheduler = scheduler_of(SchedulerSettings(WORDS, 32, 32, 32, 2048, 2000), kind)
    if computes:
        scheduler.engine = Computing(scheduler.engine)  # type: ignore[arg-type]
    for number, tokens in enumerate(prompts):
        scheduler.submit(Request(str(number), [0] * tokens, 4))
    return scheduler.plan().tokens


HALVES = (
    "    def share(self, budget, decoding, left):\n        return [min(need, budget // len(left)) for need in left]"
)


def test_an_engine_that_counts_obeys_a_share_and_one_that_computes_refuses_another_than_its_own(tmp_path: Path) -> None:
    kind = scheduler_beside(own(tmp_path, HALVES))
    assert first_step(Scheduler, [40, 5]) == [32, 0]
    assert first_step(kind, [40, 5]) == [16, 5]
    assert first_step(kind, [10, 5], computes=True) == [10, 5], "the same as its own"
    with pytest.raises(Refusal, match=r"\[16, 5\].*\[32, 0\]"):
        first_step(kind, [40, 5], computes=True)


@pytest.mark.parametrize("returned", ["[]", "[40, 5]", "[-1, 5]", "[0, 0]", "[0, 6]"])
def test_a_share_that_cannot_be_is_refused_with_its_numbers(tmp_path: Path, returned: str) -> None:
    kind = scheduler_beside(own(tmp_path, f"    def share(self, budget, decoding, left):\n        return {returned}"))
    with pytest.raises(Refusal, match=r"\[40, 5\]"):
        first_step(kind, [40, 5])
