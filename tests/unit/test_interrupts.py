"""Ctrl-C and SIGTERM at the wrong moment: what was loaded is what status says, and what ends goes on to its end."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl import repository
from labctl.cli.main import Terminated
from labctl.clock.clock import CONTROL
from labctl.listener import Listener
from labctl.plan import Plan, make_plan
from labctl.replicas import restart
from labctl.replicas import scale as scaling
from labctl.runtimes.lock import hold_signals_back
from labctl.runtimes.record import Endpoints, Options, Record, Replica
from labctl.stack import edits, faults, replicas
from labctl.stack.down import down_all, take_down
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.triton import readiness, server_api
from labctl.triton.server_api import Unreachable
from labkit.errors import LabError

INTERRUPTS = [KeyboardInterrupt, Terminated]
STACK, MODEL = "iterative", "iterative-gpt2"


class Runtime:
    """A runtime that notes what it is told; ``during`` happens in the midst of the first thing of that kind."""

    name = "local"

    def __init__(self, record: Record | None = None, **during: BaseException) -> None:
        self.told: list[Any] = []
        self.record, self._during = record, during

    def _do(self, kind: str, *how: Any) -> None:
        self.told.append((kind, *how))
        if kind in self._during:
            raise self._during.pop(kind)

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int = 0) -> None:
        self._do("stop", force, number)

    def spread(self, record: Record, draining: Collection[int] = ()) -> None:
        self._do("spread", [one.number for one in record.servers], list(draining))

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> None:
        self._do("start", list(only))

    def find(self, stack: str) -> Record | None:
        return self.record

    def balancer_view(self, record: Record) -> dict[int, Any]:
        self._do("seen")
        return {}

    def front_death(self, record: Record) -> str:
        return ""

    def leftovers(self, stack: str) -> list[str]:
        return []

    def logs(self, stack: str) -> Iterator[str]:
        return iter(())

    def server_path(self, path: Path) -> str:
        return str(path)


# -- held back ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def terminating() -> Iterator[None]:
    """SIGTERM does what it does on the command line."""

    def terminate(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("terminating")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_that_is_held_back_is_heard_after_the_block(number: int, raised: type[BaseException]) -> None:
    done = []
    with pytest.raises(raised), hold_signals_back():
        signal.raise_signal(number)  # to this thread: another may hear os.kill, after the test
        done.append("the rest of the block")
    assert done


# -- tear-down ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_a_graceful_tear_down_that_is_interrupted_goes_on_forcefully_to_its_end(
    session: Session, interrupt: type[BaseException]
) -> None:
    runtime: Any = Runtime(stop=interrupt())
    session.remember(Record("s", "l", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3")))
    with pytest.raises(interrupt):
        take_down(session, runtime, "s")
    assert runtime.told == [("stop", False, 0), ("stop", True, 0)]
    assert not session.workspace.folder("s").state_file.exists()


def test_fault_29_the_clock_goes_on_before_the_server_is_asked_to_end(session: Session) -> None:
    """Triton ends when what it executes has ended, and that stands still."""
    control = session.workspace.folder("s").run_dir() / CONTROL
    control.parent.mkdir(parents=True)
    control.write_text("{}")
    runtime: Any = Runtime()
    stopped_at: list[bool] = []
    runtime.stop = lambda listener, stack, force: stopped_at.append(control.exists())
    take_down(session, runtime, "s")
    assert stopped_at == [False]


def test_a_server_that_is_stuck_is_killed_and_one_that_computes_is_not(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.workspace.folder("s").run_dir().mkdir(parents=True)
    for stuck, force in (([], False), (["m is stuck; for 9 s"], True)):
        monkeypatch.setattr(faults, "stuck_sentences", lambda folder, stuck=stuck: stuck)
        runtime: Any = Runtime()
        take_down(session, runtime, "s")
        assert runtime.told == [("stop", force, 0)]


def test_the_passwords_of_a_stack_go_with_it(session: Session) -> None:
    folder = session.workspace.folder("s")
    folder.observe.mkdir(parents=True)
    (folder.observe / "password").write_text("secret")
    folder.make_secret()
    folder.make_token()
    runtime: Any = Runtime()
    take_down(session, runtime, "s")
    assert not [path for path in (folder.observe, folder.secret, folder.token) if path.exists()]


class Holding(Runtime):
    """A runtime on which something of a stack is left until it is stopped there."""

    def __init__(self, stack: str) -> None:
        super().__init__()
        self.left = {stack} - {""}

    def stacks(self) -> set[str]:
        return set(self.left)

    def leftovers(self, stack: str) -> list[str]:
        return [f"something of {one}" for one in self.left if one == stack]

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int = 0) -> None:
        self.left.discard(stack)


@pytest.mark.parametrize("where", [0, 1])
def test_down_all_finds_what_is_remembered_nowhere_on_either_runtime(
    session: Session, monkeypatch: pytest.MonkeyPatch, where: int
) -> None:
    runtimes: Any = [Holding("s" if place == where else "") for place in (0, 1)]
    monkeypatch.setattr(Session, "runtimes", runtimes)
    assert down_all(session) == ["s"]
    assert not any(runtime.left for runtime in runtimes)


def test_a_tear_down_that_fails_is_not_begun_again(session: Session) -> None:
    runtime: Any = Runtime(stop=LabError("no engine", code="docker-missing"))
    with lab_error("docker-missing"):
        take_down(session, runtime, "s")
    assert runtime.told == [("stop", False, 0)]


@pytest.mark.usefixtures("terminating")
@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_forceful_tear_down_is_not_interrupted_and_the_signal_is_not_lost(
    session: Session, number: int, raised: type[BaseException]
) -> None:
    class Signalled(Runtime):
        def leftovers(self, stack: str) -> list[str]:
            signal.raise_signal(number)  # to this thread: another may hear os.kill, after the test
            self.told.append("looked for what is left")
            return []

    runtime: Any = Signalled()
    session.remember(Record("s", "l", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3")))
    with pytest.raises(raised):
        take_down(session, runtime, "s", force=True)
    assert runtime.told == [("stop", True, 0), "looked for what is left"]
    assert not session.workspace.folder("s").state_file.exists()


# -- reload ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def edited(session: Session, tmp_path: Path) -> tuple[Plan, Record]:
    """The plan of a stack of two servers that serves the shipped model, one file of which a person has edited."""
    lab, name = session.catalog.stack(STACK)
    plan = make_plan(session.workspace, lab, name, Options(), str)
    templates = tmp_path / "templates"
    shutil.copytree(plan.request.sources[0], templates)
    plan = dataclasses.replace(plan, request=dataclasses.replace(plan.request, sources=[templates]))
    repository.render_repository(plan.request)
    model = templates / MODEL / "1" / "model.py"
    model.write_text(model.read_text() + "# edited\n")
    places = [Endpoints(f"127.0.0.1:{n}", "h:2", "h:3") for n in (1, 2)]
    servers = [Replica(n, place) for n, place in enumerate(places, 1)]
    record = Record(name, lab.folder, "local", "cpu", plan.settings, [MODEL], places[0], balance="l7", servers=servers)
    return plan, record


class Triton:
    """Stands for the servers' repository API: each has the version that it was last told to load."""

    def __init__(self, served: Path, fails: dict[int, BaseException]) -> None:
        self._served, self._fails = served, fails
        self._calls = 0
        self.has: dict[str, str] = {}
        self.patience: list[float] = []

    def load_model(self, http: str, model: str, patience: float, key: str) -> None:
        self._calls += 1
        self.patience.append(patience)
        self.has[http] = (self._served / model / "1" / "model.py").read_text()
        if error := self._fails.pop(self._calls, None):
            raise error


def reloaded(
    session: Session,
    plan: Plan,
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
    fails: dict[int, BaseException],
    expected: type[BaseException],
) -> Triton:
    triton = Triton(plan.request.output, fails)
    monkeypatch.setattr(server_api, "load_model", triton.load_model)
    monkeypatch.setattr(readiness, "probe", lambda *arguments: None)
    with pytest.raises(expected):
        edits.load_differing(stack_of(session, plan, record))
    return triton


def stack_of(session: Session, plan: Plan, record: Record) -> RunningStack:
    """The stack of that record, with that plan."""
    runtime: Any = Runtime()
    stack = RunningStack.of(session, plan.lab, runtime, record)
    vars(stack)["plan"] = plan
    return stack


def differences(plan: Plan) -> list[str]:
    """The models that differ from what is served."""
    with edits._render_fresh(plan) as fresh:
        return list(edits._differences(plan, fresh))


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("server", [1, 2])
def test_a_reload_that_is_interrupted_is_undone_on_every_server_that_may_have_the_edit(
    session: Session,
    edited: tuple[Plan, Record],
    monkeypatch: pytest.MonkeyPatch,
    interrupt: type[BaseException],
    server: int,
) -> None:
    plan, record = edited
    triton = reloaded(session, plan, record, monkeypatch, {server: interrupt()}, interrupt)
    assert len(triton.has) == server
    assert not any("# edited" in text for text in triton.has.values())
    assert max(triton.patience[server:]) <= edits.UNDO_S
    assert differences(plan) == [MODEL], "status says that the edit is not loaded"


@pytest.mark.parametrize("moment", [1, 2])
def test_a_reload_that_is_interrupted_between_two_renames_is_undone(
    session: Session, edited: tuple[Plan, Record], monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    plan, record = edited
    rename, served = Path.rename, plan.request.output / MODEL
    count = 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal count
        done = rename(self, target)
        count += served in (self, target)
        if count == moment:
            count = 99
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Path, "rename", interrupted)
    reloaded(session, plan, record, monkeypatch, {}, KeyboardInterrupt)
    assert "# edited" not in (served / "1" / "model.py").read_text()
    assert differences(plan) == [MODEL]


def test_a_model_that_triton_refuses_is_loaded_again_only_where_it_was_loaded(
    session: Session, edited: tuple[Plan, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, record = edited
    triton = reloaded(session, plan, record, monkeypatch, {2: LabError("refused", code="model-load-failed")}, LabError)
    assert len(triton.patience) == 3
    assert "# edited" not in triton.has["127.0.0.1:1"]


def test_a_model_that_triton_may_be_loading_still_is_loaded_again(
    session: Session, edited: tuple[Plan, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, record = edited
    late = LabError("not loaded in time", code="model-load-slow")
    late.__cause__ = Unreachable("timed out")
    triton = reloaded(session, plan, record, monkeypatch, {1: late}, LabError)
    assert "# edited" not in triton.has["127.0.0.1:1"]


def test_what_is_loaded_is_newer_than_what_was_served_although_the_clock_was_set_back(
    session: Session, edited: tuple[Plan, Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, record = edited
    served = plan.request.output / MODEL
    edits._make_newer(served, 2 * edits._newest(served))  # far in the future, as it was when the clock was wrong
    newest = [edits._newest(served)]

    def load(http: str, model: str, patience: float, key: str) -> None:
        newest.append(edits._newest(served))
        if len(newest) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(server_api, "load_model", load)
    monkeypatch.setattr(readiness, "probe", lambda *arguments: None)
    with pytest.raises(KeyboardInterrupt):
        edits.load_differing(stack_of(session, plan, record))
    assert len(newest) == 5
    assert newest[0] < newest[1] == newest[2] < newest[3], "Triton loads only what is newer than what it has"


# -- scale and restart -------------------------------------------------------------------------------------------------


@pytest.fixture
def replicated(session: Session, monkeypatch: pytest.MonkeyPatch) -> tuple[Session, Record]:
    lab, name = session.catalog.stack(STACK)
    places = [Endpoints(f"127.0.0.1:{n}", "127.0.0.1:2", "127.0.0.1:3") for n in (1, 2, 3)]
    servers = [Replica(n, place) for n, place in enumerate(places, 1)]
    settings = make_plan(session.workspace, lab, name, Options(), str).settings
    record = Record(name, lab.folder, "local", "cpu", settings, [MODEL], places[0], balance="l7", servers=servers)
    session.remember(record)
    monkeypatch.setattr(replicas, "_await_drained", lambda *arguments: 0)
    monkeypatch.setattr(replicas, "await_ready", lambda *arguments: None)
    return session, record


def use(monkeypatch: pytest.MonkeyPatch, runtime: Any) -> None:
    """The stack is up on this runtime."""
    monkeypatch.setattr(Session, "find", lambda self, stack: RunningStack.of(self, None, runtime, runtime.record))


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("moment", ["seen", "stop"])
def test_fewer_replicas_that_are_interrupted_once_drained_are_fewer_all_the_same(
    replicated: tuple[Session, Record], monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException], moment: str
) -> None:
    session, record = replicated
    runtime = Runtime(record, **{moment: interrupt()})
    use(monkeypatch, runtime)
    with pytest.raises(interrupt):
        scaling.scale(session, session.catalog.stack(STACK)[0], STACK, 1)
    kept = session.remembered(STACK)
    assert kept and [one.number for one in kept.servers] == [1]
    assert runtime.told[-2:] == [("stop", True, 2), ("stop", True, 3)]
    assert [told for told in runtime.told if told[0] == "spread"][-1] == ("spread", [1], [])


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_fault_47_more_replicas_that_are_interrupted_are_gone_and_the_balancer_is_told(
    replicated: tuple[Session, Record], monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    session, record = replicated
    runtime = Runtime(record, start=interrupt())
    use(monkeypatch, runtime)
    with pytest.raises(interrupt):
        scaling.scale(session, session.catalog.stack(STACK)[0], STACK, 4)
    assert session.remembered(STACK) == record
    assert runtime.told[-2:] == [("stop", True, 4), ("spread", [1, 2, 3], [])]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("moment", ["seen", "stop"])
def test_fault_47_a_rolling_restart_that_is_interrupted_leaves_every_replica_to_the_balancer(
    replicated: tuple[Session, Record], monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException], moment: str
) -> None:
    session, record = replicated
    runtime = Runtime(record, **{moment: interrupt()})
    use(monkeypatch, runtime)
    with pytest.raises(interrupt):
        restart.rolling(session, session.catalog.stack(STACK)[0], STACK, 1.0)
    assert runtime.told[-1] == ("spread", [1, 2, 3], [])
    assert session.remembered(STACK) == record
