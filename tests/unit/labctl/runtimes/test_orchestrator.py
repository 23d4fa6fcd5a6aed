"""The orchestrator's small decisions: ports, locks, processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab_errors import lab_error

from labctl.listener import Silent
from labctl.runtimes import lock, processes
from labctl.runtimes.lock import holder, stack_lock
from labctl.runtimes.processes import Command
from labctl.runtimes.record import Endpoints, Proc, Record
from labctl.stack.ports import claim_endpoints, free_endpoints, named_endpoints
from labctl.workspace import Workspace


def record(http: int) -> Record:
    endpoints = Endpoints(f"127.0.0.1:{http}", "127.0.0.1:2", "127.0.0.1:3")
    return Record("other", "lab", "local", "cpu", {}, ["m"], endpoints)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, tmp_path)


@pytest.fixture
def note(workspace: Workspace) -> Path:
    """What the holder of a stack's lock says of itself."""
    return workspace.folder("s").lock


@pytest.fixture
def taken() -> Any:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_fault_4_a_taken_port_is_named_with_who_has_it_and_the_way_out(taken: int) -> None:
    free = claim_endpoints("auto")
    grpc, metrics = free.grpc.split(":")[1], free.metrics.split(":")[1]
    with lab_error("port-taken", f"HTTP port {taken}"):
        claim_endpoints(f"{taken},{grpc},{metrics}")
    with lab_error("port-taken", "labctl down other"):
        claim_endpoints(f"{taken},{grpc},{metrics}", lambda: [record(taken)])


def test_an_automatic_port_is_none_that_a_connection_may_be_given_before_a_server_listens_on_it() -> None:
    first, last = (int(word) for word in Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    picked = [int(end.rpartition(":")[2]) for place in free_endpoints(40) for end in vars(place).values()]
    assert len(set(picked)) == 120
    assert not [port for port in picked if first <= port <= last or port <= 8002]


@pytest.mark.parametrize("text", ["", "8000", "1,2,3,4", "a,b,c", "1,1,2", "0,1,2", "1,2,70000"])
def test_ports_that_are_none_are_refused(text: str) -> None:
    with lab_error("ports-invalid"):
        named_endpoints(text)


def test_fault_16_a_stack_is_changed_by_one_process_at_a_time_and_the_holder_is_named(workspace: Workspace) -> None:
    me = Proc.current().pid
    with stack_lock(workspace, "s", "up"):
        assert holder(workspace, "s") == (me, "up")
        with lab_error("stack-busy", me), stack_lock(workspace, "s", "down"):
            pass
        with stack_lock(workspace, "another", "up"):
            pass
    assert holder(workspace, "s") is None


def test_fault_17_a_reused_pid_is_not_taken_for_the_holder(workspace: Workspace, note: Path) -> None:
    note.parent.mkdir(parents=True)
    me = Proc.current()
    note.write_text(json.dumps({"pid": me.pid, "started": me.started - 1000, "action": "up"}))
    assert holder(workspace, "s") is None
    with stack_lock(workspace, "s", "up"):
        pass


def test_fault_17_the_lock_of_a_command_that_was_killed_is_free(workspace: Workspace) -> None:
    code = (
        "import sys, time; from pathlib import Path; from labctl.runtimes.lock import stack_lock\n"
        "from labctl.workspace import Workspace; place = Path(sys.argv[1])\n"
        "with stack_lock(Workspace(place, place), 's', 'up'): print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(workspace.root)], stdout=subprocess.PIPE, text=True
    ) as command:
        assert command.stdout
        assert command.stdout.readline() == "held\n"
        with lab_error("stack-busy", command.pid, kind=lock.Busy):
            stack_lock(workspace, "s", "up").__enter__()
        command.kill()
    assert holder(workspace, "s") is None
    with stack_lock(workspace, "s", "up"):
        assert holder(workspace, "s") == (os.getpid(), "up")


def test_fault_48_a_held_lock_without_a_note_is_told_without_a_pid_to_kill(workspace: Workspace, note: Path) -> None:
    with stack_lock(workspace, "s", "up"):
        for text in ("", "null", '{"pid": 0}'):
            note.write_text(text)
            with lab_error("stack-busy", kind=lock.Busy) as caught:
                stack_lock(workspace, "s", "down").__enter__()
            assert "kill" not in str(caught.value)


def test_fault_48_a_process_is_known_again_although_the_clock_of_the_machine_was_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    me = Proc.current()
    created = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + 3600)  # counted from now backwards
    assert me.alive()
    assert Proc.current() == me
    assert not Record(**{**vars(record(1)), "owner": me}).orphaned()


def test_a_record_survives_its_journey_through_the_environment() -> None:
    one = record(1)
    assert Record.from_json(one.to_json()) == one
    owned = Record(**{**vars(one), "owner": Proc.current()})
    assert Record.from_json(owned.to_json()).owner == Proc.current()
    assert not owned.orphaned()
    assert Record(**{**vars(one), "owner": Proc(Proc.current().pid, 1.0)}).orphaned()


def test_a_killed_child_is_a_failure_with_its_signals_name() -> None:
    assert processes.describe_exit(-9) == "killed by SIGKILL"
    assert processes.describe_exit(0) == "exit status 0"


def test_a_tools_output_and_lines_are_kept_apart() -> None:
    lines: list[str] = []
    code, out, tail = processes.run_tool(
        Command(["sh", "-c", "echo result; printf 'one\\rtwo\\nthree' >&2; exit 3"]), Silent(), lines.append
    )
    assert (code, out) == (3, "result\n")
    assert lines == tail == ["one", "two", "three"]


def test_a_tool_that_still_works_when_its_command_is_cut_short_is_asked_to_end(tmp_path: Path) -> None:
    """Closing its pipes alone would not end it: it may not write for long."""
    asked = tmp_path / "asked"
    tool = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(asked)!r}).touch(), sys.exit()))\n"
        "print('works', file=sys.stderr, flush=True)\n"
        "time.sleep(20)\n"
    )

    def cut_short(line: str) -> None:
        raise SystemExit  # as SIGTERM does

    with pytest.raises(SystemExit):
        processes.run_tool(Command([sys.executable, "-c", tool]), Silent(), cut_short)
    assert asked.exists()


def test_a_thread_that_reads_a_command_which_has_ended_by_then_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    late = list[Callable[[], None]]()

    class Late:
        def __init__(self, target: Callable[[], None], daemon: bool) -> None:
            late.append(target)

        def start(self) -> None:
            pass

    def cut_short(line: str) -> None:
        raise SystemExit

    monkeypatch.setattr(threading, "Thread", Late)
    with pytest.raises(SystemExit):
        processes.run_tool(Command([sys.executable, "-c", "raise SystemExit('over')"]), Silent(), cut_short)
    late.pop()()


def test_a_program_that_is_not_there_is_told() -> None:
    with lab_error("command-not-started", "/nowhere"):
        processes.run_tool(Command(["/nowhere"]), Silent(), lambda line: None)
