"""``kill -9`` at ten moments of ``up``, ``run`` and ``down``: the stack's next ``down`` takes all that is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from machinery import labctl, names_left, processes_about, runtime, started
from own_stack import server_of
from waiting import eventually

from labctl.runtimes.lock import holder
from labctl.runtimes.record import GROUPS, read_state
from labctl.workspace import StackFolder, Workspace

STACK = "quick"
SLOWLY = ("--set", "behaviour=slow", "--set", "seconds=60", "--ports", "auto")
UP, RUN = ("up", STACK, *SLOWLY), ("run", STACK, "--ports", "auto", "--set", "client_seconds=60")
LOADING_RUN = ("run", STACK, *SLOWLY)
Moment = Callable[[Path], object]


def folder(root: Path) -> StackFolder:
    return Workspace(root, root).folder(STACK)


def locked(root: Path) -> object:
    return holder(Workspace(root, root), STACK)


def rendered(root: Path) -> object:
    return folder(root).repository.is_dir()


def on_record(root: Path) -> object:
    return folder(root).was_up


def named(root: Path) -> object:
    return read_state(folder(root).state_file)[GROUPS]


def served(root: Path) -> object:
    return server_of(root, STACK)


def loading(root: Path) -> object:
    return "moody" in folder(root).log_file().read_text() if served(root) else False


def at_work(root: Path) -> object:
    return list(root.glob("results/*/*/answer.json"))


def check_what_is_left(root: Path) -> None:
    labctl("down", STACK, root=root)
    assert runtime(root, "local").leftovers(STACK) == [] and names_left(root) == set()
    assert not folder(root).state_file.exists()
    eventually(lambda: not processes_about(root))


@pytest.mark.parametrize("where", ["local"])
@pytest.mark.parametrize(
    ("command", "moment"),
    [
        pytest.param(command, moment, id=f"{command[0]}, {moment.__name__}")
        for command, moment in (
            *((UP, moment) for moment in (locked, rendered, on_record, named, served, loading)),
            (LOADING_RUN, named),
            (RUN, at_work),
        )
    ],
)
def test_what_a_killed_up_or_run_leaves_goes_with_the_next_down(
    own: Path, where: str, command: tuple[str, ...], moment: Moment
) -> None:
    with started(own, *command) as process:
        eventually(lambda: moment(own))
        process.kill()
    check_what_is_left(own)


def asked_to_end(root: Path, server: psutil.Process) -> bool:
    """Whether SIGTERM waits for the server, which is stopped."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) & 1 << 14 for line in lines if line.startswith(("SigPnd:", "ShdPnd:")))


def ended(root: Path, server: psutil.Process) -> bool:
    return not server.is_running() or server.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("where", ["local"])
@pytest.mark.parametrize("moment", [asked_to_end, ended])
def test_what_a_killed_down_leaves_goes_with_the_next_one(
    own: Path, where: str, moment: Callable[[Path, psutil.Process], bool]
) -> None:
    labctl("up", STACK, "--ports", "auto", root=own)
    server = server_of(own, STACK)
    assert server
    if moment is asked_to_end:
        server.suspend()
    with started(own, "down", STACK) as process:
        eventually(lambda: moment(own, server))
        process.kill()
    if moment is asked_to_end:
        server.resume()
    check_what_is_left(own)
