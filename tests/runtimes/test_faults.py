"""The faults that a stack survives on either runtime, each injected as it happens to people."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from lab_errors import lab_error
from machinery import found, labctl, runtime, share_server, started, status
from own_stack import server_of
from waiting import DEADLINE_S, eventually

from labctl import catalog
from labctl.listener import Silent
from labctl.options import Options
from labctl.runtimes.lock import holder
from labctl.stack import ports
from labctl.stack.session import Session
from labctl.stack.stack import RunningStack
from labctl.stack.up import up
from labctl.workspace import Workspace

STACK = "quick"
LOADING = ("--set", "behaviour=slow", "--set", "seconds=60")
BRIEFLY = ("--set", "behaviour=slow", "--set", "seconds=3")
ENDLESSLY = ("--timeout", "3600")  # longer than a test waits for labctl


def on(where: str) -> tuple[str, ...]:
    return ("--runtime", where, "--ports", "auto")


def loading(root: Path, where: str) -> bool:
    """True once the server is there: then the models load."""
    return found(root, STACK) is not None


def kill_server(root: Path, where: str) -> None:
    """As the kernel does it: SIGKILL, no warning."""
    if where == "local":
        server = server_of(root, STACK)
        assert server
        server.kill()
    else:
        from machinery import container

        container(root, STACK).kill()


def nothing_left(root: Path, where: str) -> bool:
    return runtime(root, where).leftovers(STACK) == []


# -- 1: kill -9 of labctl ----------------------------------------------------------------------------------------------


def test_fault_1_kill_9_in_mid_up_leaves_a_stack_on_which_the_next_up_converges(own: Path, where: str) -> None:
    with started(own, "up", STACK, *BRIEFLY, *on(where)) as first:
        eventually(lambda: loading(own, where))
        first.kill()
    labctl("up", STACK, *BRIEFLY, *on(where), root=own)
    assert status(own, STACK)["state"] == "ready"
    labctl("down", STACK, root=own)
    assert nothing_left(own, where)


def test_fault_1_what_a_killed_run_left_is_swept_by_the_next_command(own: Path, where: str) -> None:
    with started(own, "run", STACK, *LOADING, *on(where)) as first:
        eventually(lambda: loading(own, where))
        first.kill()
    labctl("up", STACK, *on(where), root=own)
    assert status(own, STACK)["state"] == "ready"


# -- 2, 3: interruption ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_fault_2_a_run_interrupted_while_it_waits_tears_down(own: Path, where: str, number: int, code: int) -> None:
    with started(own, "run", STACK, *LOADING, *on(where)) as process:
        eventually(lambda: loading(own, where))
        os.killpg(process.pid, number) if number == signal.SIGINT else process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, err
    assert "Traceback" not in err
    assert nothing_left(own, where)


@pytest.mark.parametrize("shared", [False, True], ids=["alone", "shared"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_fault_2_a_run_interrupted_while_its_client_works_tears_down(
    own: Path, where: str, number: int, code: int, shared: bool
) -> None:
    if shared:
        share_server(own)
    with started(own, "run", STACK, "--set", "client_seconds=60", *on(where)) as process:
        eventually(lambda: list(own.glob("results/*/*/answer.json")))
        os.killpg(process.pid, number) if number == signal.SIGINT else process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == code, err
    assert nothing_left(own, where)


def test_fault_2_ctrl_c_during_up_names_what_is_still_there(own: Path, where: str) -> None:
    with started(own, "up", STACK, *LOADING, *on(where)) as process:
        eventually(lambda: loading(own, where))
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130, err
    assert loading(own, where)
    assert f"labctl down {STACK}" in err


def test_fault_2_a_second_ctrl_c_does_not_stop_the_clean_up(own: Path, where: str) -> None:
    with started(own, "run", STACK, *LOADING, *on(where)) as process:
        eventually(lambda: loading(own, where))
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130, err
    assert nothing_left(own, where)


def test_fault_3_sigterm_during_up_leaves_no_server(own: Path, where: str) -> None:
    with started(own, "up", STACK, *LOADING, *on(where)) as process:
        eventually(lambda: loading(own, where))
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 143, err
    assert nothing_left(own, where)


# -- 4: a taken port ---------------------------------------------------------------------------------------------------


def test_fault_4_a_taken_port_is_named_before_anything_is_made(own: Path, where: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = labctl("up", STACK, "--runtime", where, "--ports", f"{port},1201,1202", root=own, check=False)
    assert done.returncode == 1
    assert f"HTTP port {port}" in done.stderr
    assert "--ports auto" in done.stderr
    assert not (own / ".labs" / STACK / "repository").exists()
    assert nothing_left(own, where)


@pytest.fixture
def thief(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Another program, which takes the first HTTP port that was found free, before the server can."""
    look, stolen = ports.require_free, list[int]()
    with socket.socket() as listener:

        def look_then_lose(named: Mapping[str, int], running: ports.RunningRecords, remedy: str) -> None:
            look(named, running, remedy)
            if not stolen:
                stolen.append(named["HTTP"])
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind(("127.0.0.1", stolen[0]))
                listener.listen()

        monkeypatch.setattr(ports, "require_free", look_then_lose)
        yield stolen


def brought_up(root: Path, where: str, wanted: str) -> RunningStack:
    workspace = Workspace(root, root / "cache")
    session = Session(workspace, catalog.load_catalog(workspace), Silent())
    return up(session, *session.catalog.stack(STACK), Options(runtime=where, ports=wanted))


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # the server outlives this `up`
def test_fault_4_an_automatic_port_that_is_taken_before_the_server_listens_is_replaced(
    own: Path, where: str, thief: list[int]
) -> None:
    there = brought_up(own, where, "auto")
    assert len(thief) == 1
    assert there.record.ports[0] != str(thief[0])
    assert status(own, STACK)["state"] == "ready"


def test_fault_4_a_port_of_a_person_that_is_taken_before_the_server_listens_is_named(
    own: Path, where: str, thief: list[int]
) -> None:
    wanted = ",".join(map(str, ports.free_ports(3)))
    with lab_error("port-taken", "HTTP port"):
        brought_up(own, where, wanted)
    assert nothing_left(own, where)


# -- 12, 13: the server ends -------------------------------------------------------------------------------------------


def failing_up(own: Path, where: str, *settings: str) -> subprocess.CompletedProcess[str]:
    """An ``up`` that must fail, with nothing left."""
    done: subprocess.CompletedProcess[str] = labctl("up", STACK, *settings, *on(where), root=own, check=False)
    assert done.returncode == 1, done.stderr
    assert nothing_left(own, where)
    return done


def test_fault_12_a_server_that_is_killed_while_it_loads_ends_the_wait_at_once(own: Path, where: str) -> None:
    done = failing_up(own, where, "--set", "behaviour=kill", *ENDLESSLY)
    assert "the server ended before it was ready" in done.stderr
    assert "SIGKILL" in done.stderr


def test_fault_12_a_server_that_dies_later_is_told_by_status(own: Path, where: str) -> None:
    labctl("up", STACK, *on(where), root=own)
    kill_server(own, where)
    eventually(lambda: not loading(own, where) and status(own, STACK)["state"] == "failed")
    labctl("down", STACK, root=own)
    assert status(own, STACK)["state"] == "absent"
    assert nothing_left(own, where)


# -- 14, 15: slow and broken models ------------------------------------------------------------------------------------


def test_fault_14_a_model_that_loads_slowly_but_within_the_time_is_waited_for(own: Path, where: str) -> None:
    labctl("up", STACK, *BRIEFLY, *ENDLESSLY, *on(where), root=own)
    assert status(own, STACK)["state"] == "ready"


def test_fault_14_a_model_that_loads_too_slowly_is_a_clear_timeout_that_names_it_alone(own: Path, where: str) -> None:
    slow = ("--set", "behaviour=slow", "--set", "seconds=3600")
    for seconds in (10, 30, 90, 270):  # a busy machine may need more until the other one is loaded
        done = failing_up(own, where, *slow, "--timeout", str(seconds))
        if "echo, moody" not in done.stderr.partition("not ready")[2].partition("\n")[0]:
            break
    assert f"not ready within {seconds} s: moody\n" in done.stderr


def test_fault_15_a_model_that_cannot_load_fails_up_with_its_name_and_tritons_reason(own: Path, where: str) -> None:
    done = failing_up(own, where, "--set", "behaviour=refuse", *ENDLESSLY)
    assert "Triton could not load moody" in done.stderr
    assert "no luck today" in done.stderr


# -- 16, 21: several at once, down twice -------------------------------------------------------------------------------


def test_fault_16_a_second_up_of_the_same_stack_fails_at_once_and_names_the_first(own: Path, where: str) -> None:
    with started(own, "up", STACK, *BRIEFLY, *on(where)) as first:
        eventually(lambda: (h := holder(Workspace(own, own / "cache"), STACK)) and h.pid == first.pid)
        psutil.Process(first.pid).suspend()  # it is in progress, however long the second takes to begin
        second = labctl("up", STACK, *on(where), root=own, check=False)
        psutil.Process(first.pid).resume()
        assert second.returncode == 1
        assert f"(pid {first.pid})" in second.stderr
        assert first.wait(DEADLINE_S) == 0


def test_fault_16_two_stacks_live_side_by_side_and_down_takes_one(own: Path, where: str) -> None:
    with started(own, "up", STACK, *on(where)) as one, started(own, "up", "quick-too", *on(where)) as other:
        assert [one.wait(DEADLINE_S), other.wait(DEADLINE_S)] == [0, 0]
    labctl("down", STACK, root=own)
    assert nothing_left(own, where)
    assert "was not up" in labctl("down", STACK, root=own).stdout
    assert status(own, "quick-too")["state"] == "ready"
