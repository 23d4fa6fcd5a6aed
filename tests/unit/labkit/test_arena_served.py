"""A policy in the scheduler of a real server: as in virtual time, asked once a step, and ended by name for a foul."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from checkout import ROOT

from labkit.predict import games, referee, served
from labkit.predict.field import SERVED
from labkit.predict.policy import Foul, Player
from labsched.figures import first_difference
from labsched.plan import StepPlan
from labsched.recording import Arrival, StepRow
from labsched.replay import Replay, scheduler_of
from labsched.step import Step

ARENA = ROOT / "labs" / "extras" / "arena"
COUNTS = """
asked = []
def line(view):
    asked.append(view.step)
    if len(set(asked)) < len(asked): raise ValueError('asked twice')
    return [one.id for one in view.waiting]
"""
Write = Callable[[str], Path]


@pytest.fixture
def policy(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "policy.py"
        path.write_text(text)
        return path

    return write


def on_a_server(folder: Path, path: Path, arrivals: Sequence[Arrival], replayed: referee.Game) -> list[StepRow]:
    """The game as a server plays it: it plans many times before a step, and requests come by steps."""

    class Scheduler(served.Served):
        def step(self, plan: StepPlan | None = None) -> Step:
            for _ in range(3):
                plan = self.plan()
            return super().step(plan)

    Scheduler.folder = folder
    at = {one.name: one.at for one in arrivals}
    game = served.GameFile(str(path), sys.executable, referee.most_steps(arrivals, SERVED), at, replayed.after)
    game.write(folder)
    scheduler = scheduler_of(SERVED.settings(arrivals), Scheduler)
    return Replay(scheduler, [replace(one, after=replayed.after[one.name]) for one in arrivals]).run()


def replayed(path: Path, arrivals: Sequence[Arrival]) -> referee.Game:
    with Player(path) as player:
        return referee.game(player, arrivals, SERVED)


@pytest.mark.parametrize("trace", ["chat", "flood", "documents"])
@pytest.mark.parametrize("name", ["victim_random", "vtc", "edf"])
def test_a_server_does_what_the_replay_did(tmp_path: Path, name: str, trace: str) -> None:
    arrivals = games.public_traces()[trace][:48]
    path = ARENA / f"{name}.py"
    before = replayed(path, arrivals)
    rows = on_a_server(tmp_path, path, arrivals, before)
    assert first_difference(before.rows, rows) is None
    outcome = served.GameOutcome.read(tmp_path)
    assert outcome and not outcome.foul
    referee.retime_steps(rows, arrivals, SERVED)
    assert referee.verdict(rows, arrivals, SERVED, 0.0) == before.figures


def test_a_policy_is_asked_once_a_step_however_often_the_server_plans(tmp_path: Path, policy: Write) -> None:
    arrivals = games.public_traces()["chat"][:24]
    path = policy(COUNTS)
    before = replayed(path, arrivals)
    assert first_difference(before.rows, on_a_server(tmp_path, path, arrivals, before)) is None


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("def line(view): return ['9']", "line"),
        ("def victim(view): return 1\ndef reserve(view): return -1", "reserve"),
        ("def places(view): return 0", "starves"),
        ("import os\ndef line(view): os._exit(1)", "crashed"),
        ("raise ValueError", "crashed"),
        ("def line(view): open('/etc/passwd')", "crashed"),
    ],
)
def test_a_foul_on_the_server_ends_the_game_and_is_told_by_name(
    tmp_path: Path, policy: Write, text: str, word: str
) -> None:
    arrivals = games.public_traces()["chat"][:12]
    fair = replayed(ARENA / "fcfs.py", arrivals)
    with pytest.raises(Foul) as foul:
        on_a_server(tmp_path, policy(text), arrivals, fair)
    outcome = served.GameOutcome.read(tmp_path)
    assert outcome and (outcome.foul, outcome.why) == (foul.value.word, str(foul.value))
    assert outcome.foul == word


def test_without_a_game_the_server_answers_as_shipped(tmp_path: Path) -> None:
    arrivals = games.public_traces()["chat"][:24]
    fair = replayed(ARENA / "fcfs.py", arrivals)
    kind = type("Scheduler", (served.Served,), {"folder": tmp_path})
    pins = [replace(one, after=fair.after[one.name]) for one in arrivals]
    assert first_difference(fair.rows, Replay(scheduler_of(SERVED.settings(arrivals), kind), pins).run()) is None
    assert served.GameOutcome.read(tmp_path) is None
