"""What the small loop behind ``labctl scale --auto`` decides."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner
from fake_triton import FakeTriton, serve
from lab_errors import is_lab_error, lab_error

from labctl.cli import options
from labctl.cli.edit import scale_command
from labctl.listener import Listener, Silent
from labctl.replicas.scale import Scaler, autoscale, parse_bounds
from labctl.runtimes import balancer
from labctl.runtimes.base import State
from labctl.runtimes.envoy.admin import UpstreamHealth
from labctl.runtimes.lock import stack_lock
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack.session import Session
from labctl.workspace import Workspace

LOOKS = 10  # after which the stream that is open on the second replica ends


def test_more_replicas_come_only_when_too_many_wait_several_times_in_a_row() -> None:
    scaler = Scaler(1, 3, target=4, patience=3)
    assert [scaler.decide(waiting, 1) for waiting in (9, 9, 4, 9, 9, 9)] == [1, 1, 1, 1, 1, 2]
    assert [scaler.decide(9, 2) for _ in range(3)] == [2, 2, 3]
    assert {scaler.decide(99, 3) for _ in range(9)} == {3}


def test_fewer_come_only_after_nothing_has_waited_for_long() -> None:
    scaler = Scaler(1, 3, patience=2)
    looks = [scaler.decide(0, 2) for _ in range(19)]
    assert set(looks) == {2}
    assert scaler.decide(1, 2) == 2
    assert [scaler.decide(0, 2) for _ in range(20)] == [2] * 19 + [1]
    assert {scaler.decide(0, 1) for _ in range(50)} == {1}


def test_it_stays_between_its_bounds_from_the_first_look_on() -> None:
    assert Scaler(2, 3).decide(0, 1) == 2
    assert Scaler(1, 2).decide(0, 5) == 2


@pytest.mark.parametrize("text", ["", "3", "0:2", "3:2", "1:99", "a:b"])
def test_bounds_that_make_no_sense_are_refused(text: str) -> None:
    with lab_error("scale-bounds-invalid"):
        parse_bounds(text)
    assert parse_bounds("1:4") == (1, 4)


class TwoReplicas:
    """A runtime with a stack of two, on whose second replica a stream is open; it is gone when that one is stopped."""

    name = "local"

    def __init__(self, record: Record) -> None:
        self.alive, self._record, self._looks = True, record, 0

    def state(self, record: Record) -> State:
        return State(self._record, frozenset((1, 2) if self.alive else ()))

    def assign(self, workspace: Workspace, record: Record, draining: Collection[int] = ()) -> None:
        self._draining = draining or [1]
        self._there = [one.number for one in record.servers]

    def upstreams(self, workspace: Workspace, record: Record) -> dict[int, UpstreamHealth]:
        self._looks += 1
        return {n: UpstreamHealth(draining=n in self._draining, active=int(self._looks <= LOOKS)) for n in self._there}

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int | None = None) -> None:
        self.alive = False


class Heard(Silent):
    def __init__(self) -> None:
        self.words: list[str] = []

    def done(self, text: str = "", timed: bool = True) -> None:
        self.words.append(text)


@pytest.fixture
def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Session, TwoReplicas]]:
    """A session in which such a stack is up; its listener hears."""
    listener = Heard()
    session = Session(Workspace(tmp_path, tmp_path / "cache"), Session.open(listener).catalog, listener)
    session.workspace.folder("iterative").path.mkdir(parents=True)
    with serve(FakeTriton()) as where:
        there = Endpoints(where, "127.0.0.1:1", where)
        servers = [Replica(1, there), Replica(2, there)]
        record = Record("iterative", "02", "local", "cpu", {}, ["m"], there, balance="l7", servers=servers)
        session.remember(record)
        runtime = TwoReplicas(record)
        monkeypatch.setattr(balancer, "assign_servers", runtime.assign)
        monkeypatch.setattr(balancer, "upstreams", runtime.upstreams)
        monkeypatch.setattr(Session, "runtime", lambda self, name: runtime)
        yield session, runtime


def test_the_loop_goes_on_after_another_command_has_held_the_stack(up: tuple[Session, TwoReplicas]) -> None:
    session, _ = up
    with ExitStack() as held:
        lab = session.catalog.stack("iterative")[0]
        held.enter_context(stack_lock(session.workspace, "iterative", "reload"))
        lines = autoscale(session, lab, "iterative", Scaler(1, 1), lambda seconds: held.close())
        assert next(lines) == "2 -> 1: nothing waits for 2"
        assert next(lines).startswith("2 stay: another 'labctl reload' of iterative is in progress")
        assert next(lines) == "2 -> 1: nothing waits for 2"
        with lab_error("stack-not-up", "iterative"):  # it goes with its last replica
            next(lines)


def test_the_loop_goes_on_while_a_restart_takes_the_stack_down_and_up(up: tuple[Session, TwoReplicas]) -> None:
    session, runtime = up
    with ExitStack() as held:
        looks = 0

        def pause(seconds: float) -> None:
            nonlocal looks
            looks += 1
            if looks == 1:  # at first nobody holds it: the restart has just let go of it after its down
                held.enter_context(stack_lock(session.workspace, "iterative", "up"))
            elif looks == 3:
                runtime.alive = True
                held.close()

        runtime.alive = False
        lines = autoscale(session, session.catalog.stack("iterative")[0], "iterative", Scaler(1, 1), pause)
        assert next(lines) == "2 -> 1: nothing waits for 2"
        assert looks == 3


@pytest.mark.parametrize("words, said", [([], "nothing is in flight"), (["--drain", "0"], "1 stream is cut")])
def test_the_loop_waits_for_a_replica_that_goes_as_long_as_drain_says_and_writes_what_it_decided_and_when(
    words: list[str], said: str, up: tuple[Session, TwoReplicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = up
    monkeypatch.setattr(options, "open_session", lambda *_, **__: session)
    done = CliRunner().invoke(scale_command, ["iterative", "--auto", "1:1", *words])
    is_lab_error(done.exception, "stack-not-up")  # the loop ends where the stack does
    assert isinstance(session.listener, Heard) and session.listener.words == [said]
    (line,) = (session.workspace.folder("iterative").path / "scale.log").read_text().splitlines()
    moment, _, decision = line.partition(" ")
    assert datetime.fromisoformat(moment).tzinfo
    assert decision == "2 -> 1: nothing waits for 2"
    assert done.output == f"{line}\n"
