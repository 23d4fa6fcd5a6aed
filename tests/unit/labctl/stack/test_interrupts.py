"""Ctrl-C and SIGTERM at the wrong moment: what was loaded is what status says, and what ends goes on to its end."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl import repository
from labctl.cli.main import Terminated
from labctl.clock import CONTROL
from labctl.listener import Listener
from labctl.options import Options
from labctl.plan import Plan, make_plan
from labctl.replicas import restart
from labctl.replicas import scale as scaling
from labctl.runtimes import balancer
from labctl.runtimes.base import Part, State
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack import edits, faults, replicas
from labctl.stack.down import down_all, take_down
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.triton import readiness, server_api
from labctl.triton.server_api import Unreachable
from labctl.workspace import Workspace
from labkit.disk import atomic_write
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

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int | None = None) -> None:
        self._do("stop", force, number)

    def assign(self, workspace: Workspace, record: Record, draining: Collection[int] = ()) -> None:
        self._do("assign", [one.number for one in record.servers], list(draining))

    def start(self, listener: Listener, plan: Plan, record: Record, only: Collection[int] = ()) -> None:
        self._do("start", list(only))

    def state(self, record: Record) -> State:
        return State(record, frozenset(server.number for server in record.servers))

    def upstreams(self, workspace: Workspace, record: Record) -> dict[int, Any]:
        self._do("seen")
        return {}

    def leftovers(self, stack: str) -> list[str]:
        return []

    def logs(self, stack: str, follow: bool = False, part: Part | None = None) -> Iterator[str]:
        return iter(())


RECORD = Record("s", "l", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"))


# -- tear-down ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_a_graceful_tear_down_that_is_interrupted_goes_on_forcefully_to_its_end(
    session: Session, interrupt: type[BaseException]
) -> None:
    runtime: Any = Runtime(stop=interrupt())
    session.remember(RECORD)
    with pytest.raises(interrupt):
        take_down(session, runtime, "s")
    assert runtime.told == [("stop", False, None), ("stop", True, None)]
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
        assert runtime.told == [("stop", force, None)]


def test_the_secret_of_a_stack_goes_with_it(session: Session) -> None:
    folder = session.workspace.folder("s")
    folder.make_secret()
    runtime: Any = Runtime()
    take_down(session, runtime, "s")
    assert not folder.secret.exists()


class Holding(Runtime):
    """A runtime on which something of a stack is left until it is stopped there."""

    def __init__(self, stack: str) -> None:
        super().__init__()
        self.left = {stack} - {""}

    def leftovers(self, stack: str) -> list[str]:
        return [f"something of {one}" for one in self.left if one == stack]

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int | None = None) -> None:
        self.left.discard(stack)


@pytest.mark.parametrize("where", [0, 1])
def test_down_all_finds_a_stack_by_a_damaged_state_file_or_by_the_engine_alone(
    session: Session, monkeypatch: pytest.MonkeyPatch, where: int
) -> None:
    runtimes: Any = [Holding("s" if place == where else "") for place in (0, 1)]
    monkeypatch.setattr(Session, "runtimes", runtimes)
    monkeypatch.setattr(ComposeRuntime, "stacks", lambda self: set(runtimes[1].left))
    if where == 0:
        atomic_write(session.workspace.folder("s").state_file, "damaged")
    assert down_all(session) == ["s"]
    assert not any(runtime.left for runtime in runtimes)


def test_a_tear_down_that_fails_is_not_begun_again(session: Session) -> None:
    runtime: Any = Runtime(stop=LabError("no engine", code="docker-missing"))
    with lab_error("docker-missing"):
        take_down(session, runtime, "s")
    assert runtime.told == [("stop", False, None)]


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
def test_a_forceful_tear_down_is_not_interrupted_and_the_signal_is_not_lost(
    session: Session, number: int, raised: type[BaseException]
) -> None:
    class Signalled(Runtime):
        def leftovers(self, stack: str) -> list[str]:
            signal.raise_signal(number)  # to this thread: another may hear os.kill, after the test
            self.told.append("looked for what is left")
            return []

    runtime: Any = Signalled()
    session.remember(RECORD)
    with pytest.raises(raised):
        take_down(session, runtime, "s", force=True)
    assert runtime.told == [("stop", True, None), "looked for what is left"]
    assert not session.workspace.folder("s").state_file.exists()


# -- reload ------------------------------------------------------------------------------------------------------------


def replicated(session: Session, plan: Plan, count: int) -> Record:
    places = [Endpoints(f"127.0.0.1:{n}", "127.0.0.1:2", "127.0.0.1:3") for n in range(1, count + 1)]
    servers = [Replica(n, place) for n, place in enumerate(places, 1)]
    lab = session.catalog.stack(STACK)[0].folder
    return Record(STACK, lab, "local", "cpu", plan.settings, [MODEL], places[0], balance="l7", servers=servers)


class Edited:
    """A stack of two servers that serves the shipped model, one file of which a person has edited.

    It also stands for the servers' repository API: each has the version that it was last told to load.
    """

    def __init__(self, session: Session, templates: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        lab, name = session.catalog.stack(STACK)
        plan = make_plan(session.workspace, lab, name, Options())
        shutil.copytree(plan.request.sources[0], templates)
        self.plan = dataclasses.replace(plan, request=dataclasses.replace(plan.request, sources=[templates]))
        repository.render_repository(self.plan.request)
        model = templates / MODEL / "1" / "model.py"
        model.write_text(model.read_text() + "# edited\n")
        self.served = plan.request.output / MODEL
        runtime: Any = Runtime()
        self._stack = RunningStack.of(session, lab, runtime, replicated(session, plan, 2))
        vars(self._stack)["plan"] = self.plan
        monkeypatch.setattr(server_api, "load_model", self._load)
        monkeypatch.setattr(readiness, "probe", lambda *arguments: None)
        self.has: dict[str, str] = {}
        self.patience: list[float] = []
        self.newest: list[int] = []

    def _load(self, http: str, model: str, patience: float, key: str) -> None:
        self.patience.append(patience)
        self.newest.append(edits._newest(self.served))
        self.has[http] = (self.served / "1" / "model.py").read_text()
        if error := self._fails.pop(len(self.patience), None):
            raise error

    def reload(self, expected: type[BaseException], **fails: BaseException) -> None:
        """Load what differs; ``at_N`` is raised in the Nth load."""
        self._fails = {int(name.removeprefix("at_")): error for name, error in fails.items()}
        with pytest.raises(expected):
            edits.load_differing(self._stack)

    def differences(self) -> list[str]:
        """The models that differ from what is served: status says that their edits are not loaded."""
        return list(repository.find_differences(self.plan.request))


@pytest.fixture
def edited(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Edited:
    return Edited(session, tmp_path / "templates", monkeypatch)


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("server", [1, 2])
def test_a_reload_that_is_interrupted_is_undone_on_every_server_that_may_have_the_edit(
    edited: Edited, interrupt: type[BaseException], server: int
) -> None:
    edited.reload(interrupt, **{f"at_{server}": interrupt()})
    assert len(edited.has) == server
    assert not any("# edited" in text for text in edited.has.values())
    assert max(edited.patience[server:]) <= edits.UNDO_S
    assert edited.differences() == [MODEL]


@pytest.mark.parametrize("moment", [1, 2])
def test_a_reload_that_is_interrupted_between_two_renames_is_undone(
    edited: Edited, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    rename, count = Path.rename, 0

    def interrupted(self: Path, target: Path) -> Path:
        nonlocal count
        done = rename(self, target)
        count += edited.served in (self, target)
        if count == moment:
            count = 99
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(Path, "rename", interrupted)
    edited.reload(KeyboardInterrupt)
    assert "# edited" not in (edited.served / "1" / "model.py").read_text()
    assert edited.differences() == [MODEL]


def test_a_model_that_triton_refuses_is_loaded_again_only_where_it_was_loaded(edited: Edited) -> None:
    edited.reload(LabError, at_2=LabError("refused", code="model-load-failed"))
    assert len(edited.patience) == 3
    assert "# edited" not in edited.has["127.0.0.1:1"]


def test_a_model_that_triton_may_be_loading_still_is_loaded_again(edited: Edited) -> None:
    late = LabError("not loaded in time", code="model-load-slow")
    late.__cause__ = Unreachable("timed out")
    edited.reload(LabError, at_1=late)
    assert "# edited" not in edited.has["127.0.0.1:1"]


def test_what_is_loaded_is_newer_than_what_was_served_although_the_clock_was_set_back(edited: Edited) -> None:
    edits._make_newer(edited.served, 2 * edits._newest(edited.served))  # far in the future: the clock was wrong
    before = edits._newest(edited.served)
    edited.reload(KeyboardInterrupt, at_2=KeyboardInterrupt())
    first, second, undone, _ = edited.newest
    assert before < first == second < undone, "Triton loads only what is newer than what it has"


# -- scale and restart -------------------------------------------------------------------------------------------------

Told = tuple[list[Any], Record | None, Record]


@pytest.fixture
def interrupted(session: Session, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """``interrupted(act, at, interrupt)``: what a runtime was told; three replicas as known then, and before."""
    lab, name = session.catalog.stack(STACK)
    before = replicated(session, make_plan(session.workspace, lab, name, Options()), 3)
    session.remember(before)
    monkeypatch.setattr(replicas, "_await_drained", lambda *arguments: 0)
    monkeypatch.setattr(replicas, "await_ready", lambda *arguments: None)

    def run(act: Callable[..., object], at: str, interrupt: type[BaseException]) -> Told:
        runtime: Any = Runtime(before, **{at: interrupt()})
        monkeypatch.setattr(Session, "runtime", lambda self, name: runtime)
        monkeypatch.setattr(balancer, "assign_servers", runtime.assign)
        monkeypatch.setattr(balancer, "upstreams", runtime.upstreams)
        monkeypatch.setattr(
            RunningStack, "find", lambda session, stack: RunningStack.of(session, None, runtime, runtime.record)
        )
        with pytest.raises(interrupt):
            act(session, lab, STACK)
        return runtime.told, session.remembered(STACK), before

    return run


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("moment", ["seen", "stop"])
def test_fewer_replicas_that_are_interrupted_once_drained_are_fewer_all_the_same(
    interrupted: Callable[..., Told], interrupt: type[BaseException], moment: str
) -> None:
    told, kept, _ = interrupted(partial(scaling.scale, count=1), moment, interrupt)
    assert kept and [one.number for one in kept.servers] == [1]
    assert told[-2:] == [("stop", True, 2), ("stop", True, 3)]
    assert [one for one in told if one[0] == "assign"][-1] == ("assign", [1], [])


@pytest.mark.parametrize("interrupt", INTERRUPTS)
def test_fault_47_more_replicas_that_are_interrupted_are_gone_and_the_balancer_is_told(
    interrupted: Callable[..., Told], interrupt: type[BaseException]
) -> None:
    told, kept, before = interrupted(partial(scaling.scale, count=4), "start", interrupt)
    assert kept == before
    assert told[-2:] == [("stop", True, 4), ("assign", [1, 2, 3], [])]


@pytest.mark.parametrize("interrupt", INTERRUPTS)
@pytest.mark.parametrize("moment", ["seen", "stop"])
def test_fault_47_a_rolling_restart_that_is_interrupted_leaves_every_replica_to_the_balancer(
    interrupted: Callable[..., Told], interrupt: type[BaseException], moment: str
) -> None:
    told, kept, before = interrupted(partial(restart.rolling, patience=1.0), moment, interrupt)
    assert told[-1] == ("assign", [1, 2, 3], [])
    assert kept == before
