"""A phase's client asks for what happens to its replicas: only what the manifest lets it, and it always hears."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error
from waiting import eventually

from labctl.catalog import load_catalog
from labctl.clock import Clock
from labctl.listener import Silent
from labctl.replicas import restart, stagehand
from labctl.replicas.stagehand import Stagehand
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.workspace import Workspace
from labkit.client import context
from labkit.errors import LabError
from labserve.observe.clock import StepClock

STACK = "scaled"
PLACES = [Endpoints(f"h:{n}", f"g:{n}", f"m:{n}") for n in (1, 2, 3)]
SERVERS = [Replica(1, PLACES[1]), Replica(2, PLACES[2])]
RECORD = Record(STACK, "07-scale-out", "local", "cpu", {}, ["streams"], PLACES[0], balance="l7", servers=SERVERS)


class Stood:
    """A runtime and a session with two replicas, of which it is noted what was done to them."""

    def __init__(self) -> None:
        self.done: list[tuple[str, Any]] = []
        self.record = RECORD

    def find(self, stack: str) -> tuple[Any, Record]:
        return self, self.record

    def stop(self, listener: Any, stack: str, force: bool = False, number: int | None = None) -> None:
        self.done.append(("stop", (stack, force, number)))
        left = [server for server in self.record.servers if server.number != number]
        self.record = replace(self.record, servers=left)


@pytest.fixture
def stood(monkeypatch: pytest.MonkeyPatch) -> Stood:
    stood = Stood()
    monkeypatch.setattr(RunningStack, "find", lambda session, stack: RunningStack.of(session, None, *stood.find(stack)))
    return stood


@pytest.fixture
def begin(stood: Stood, tmp_path: Path) -> Iterator[Callable[..., Stagehand]]:
    workspace = Workspace.find(Path(__file__))
    session = Session(workspace, load_catalog(workspace), Silent())
    lab = session.catalog.lab("scale")
    with ThreadPoolExecutor(2) as hands:

        def begin() -> Stagehand:
            up = RunningStack.of(session, lab, stood, RECORD)  # type: ignore[arg-type]
            return Stagehand(hands, up, "nothing-lost", tmp_path)

        yield begin


def test_an_act_is_carried_out_and_answered_with_where_the_servers_are_now(
    begin: Callable[..., Stagehand], stood: Stood, tmp_path: Path
) -> None:
    with begin():
        done = context.request_act(tmp_path, "nothing-lost", "kill", replica=2).done()
    assert stood.done == [("stop", (STACK, True, 2))]
    assert done.outcome == "replica 2 was killed"
    assert done.replicas == {"1": vars(PLACES[1])}
    assert done.began <= done.ended


def test_a_stack_without_replicas_has_its_only_server_killed(
    begin: Callable[..., Stagehand], stood: Stood, tmp_path: Path
) -> None:
    stood.record = replace(RECORD, balance="", servers=RECORD.servers[:1])
    with begin():
        done = context.request_act(tmp_path, "nothing-lost", "kill").done()
    assert stood.done == [("stop", (STACK, True, None))]
    assert done.outcome == "the server was killed"


def test_a_replica_that_is_not_there_cannot_be_killed(
    begin: Callable[..., Stagehand], stood: Stood, tmp_path: Path
) -> None:
    with begin(), lab_error("replica-unknown", 3):
        context.request_act(tmp_path, "nothing-lost", "kill", replica=3).done()
    assert stood.done == []


def test_whoever_asks_for_nonsense_is_answered_too(begin: Callable[..., Stagehand], tmp_path: Path) -> None:
    with begin(), lab_error("act-failed", "scale"):
        context.request_act(tmp_path, "nothing-lost", "scale", how_many=2).done()


def test_an_act_is_answered_too_where_its_stack_cannot_be_looked_up_afterwards(
    begin: Callable[..., Stagehand], stood: Stood, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([RunningStack.of(None, None, stood, RECORD)])  # type: ignore[arg-type]

    def find(session: Session, stack: str) -> RunningStack:
        if up := next(looks, None):
            return up
        raise LabError("the engine is silent", code="docker-silent")

    monkeypatch.setattr(RunningStack, "find", find)
    with begin(), lab_error("docker-silent"):
        context.request_act(tmp_path, "nothing-lost", "kill", replica=2).done()


class Following:
    """A loop that decides once, and goes on when it is let."""

    def __init__(self) -> None:
        self.decided, self.may_go_on = threading.Event(), threading.Event()

    def follow(
        self, session: Any, lab: Any, stack: str, scaler: Any, pause: Callable[[float], object]
    ) -> Iterator[str]:
        yield f"{scaler.least} -> {scaler.most}"
        self.decided.set()
        assert self.may_go_on.wait(60)
        while True:
            pause(0.01)


@pytest.fixture
def following(monkeypatch: pytest.MonkeyPatch) -> Following:
    following = Following()
    monkeypatch.setattr(stagehand, "autoscale", following.follow)
    return following


def test_acts_happen_in_their_order_and_the_loop_beside_them_until_its_time_is_over(
    begin: Callable[..., Stagehand], following: Following, tmp_path: Path
) -> None:
    with begin():
        loop = context.request_act(
            tmp_path, "nothing-lost", "follow", least=1, most=2, target=4, settle=0, seconds=3600
        )
        assert following.decided.wait(60)
        killed = context.request_act(tmp_path, "nothing-lost", "kill", replica=1).done()
        assert not loop.over
        following.may_go_on.set()
        followed = loop.done()
    assert [decision["text"] for decision in followed.outcome] == ["1 -> 2"]
    assert followed.began <= killed.began < followed.ended


def test_a_phase_that_ends_ends_the_loop(begin: Callable[..., Stagehand], following: Following, tmp_path: Path) -> None:
    following.may_go_on.set()
    with begin():
        loop = context.request_act(
            tmp_path, "nothing-lost", "follow", least=1, most=2, target=4, settle=3600, seconds=3600
        )
        assert following.decided.wait(60)
        assert not loop.over
    assert isinstance(loop.done(timeout=60).outcome, list)


def test_what_takes_long_ends_at_its_next_step_when_the_client_has_ended(
    begin: Callable[..., Stagehand], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, steps = threading.Event(), []

    def rolling(session: Session, lab: Any, stack: str, patience: float) -> None:
        for number in range(10_000):
            session.listener.step(f"draining replica {number}")
            steps.append(number)
            under_way.set()
            time.sleep(0.01)

    monkeypatch.setattr(restart, "rolling", rolling)
    with begin():
        act = context.request_act(tmp_path, "nothing-lost", "roll")
        assert under_way.wait(60)
    assert len(steps) < 10_000 and not act.over


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    (tmp_path / "run").mkdir()
    StepClock(str(tmp_path / "run"), "streams", "0_0")
    made = Clock(tmp_path / "run", ("streams",))
    monkeypatch.setattr(stagehand.Stagehand, "_clock", lambda stage: made)
    return made


def test_a_client_stops_the_clock_and_it_goes_on_when_all_requests_are_there(
    begin: Callable[..., Stagehand], clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, count_held, seen = tmp_path / "run", Clock.held_requests, []

    def held_requests(clock: Clock, model: str) -> int:
        seen.append(count_held(clock, model))
        return seen[-1]

    monkeypatch.setattr(Clock, "held_requests", held_requests)
    with begin():
        context.request_act(tmp_path, "nothing-lost", "pause").done()
        assert clock.paused == ["streams"]
        state = {"model": "streams", "instance": "0_0", "state": "held", "ids": ["a"], "queue": 1}
        asked = context.request_act(tmp_path, "nothing-lost", "run", model="streams", requests=3)
        (run_dir / "clock-streams-0_0.json").write_text(json.dumps(state))
        eventually(lambda: seen.count(2) >= 3)
        assert not asked.over and clock.paused, "it has seen two of the three, and has looked again"
        (run_dir / "clock-streams-0_0.json").write_text(json.dumps({**state, "queue": 2}))
        asked.done()
        assert not clock.paused


def test_a_phase_that_ends_leaves_no_clock_stopped(
    begin: Callable[..., Stagehand], clock: Clock, tmp_path: Path
) -> None:
    with begin():
        context.request_act(tmp_path, "nothing-lost", "pause").done()
        assert clock.paused
    assert not clock.paused
