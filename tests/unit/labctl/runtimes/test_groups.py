"""A part of a stack is a process group that its stack's state file names: found, ended whole, and never another's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from checkout import ROOT
from waiting import eventually

from labctl.runtimes import groups
from labctl.runtimes.groups import ProcessGroup
from labctl.runtimes.local import LocalRuntime
from labctl.runtimes.record import Endpoints, Record, name_group, read_state
from labctl.workspace import StackFolder, Workspace

STUB = "sleep 600 & sleep 600"  # a server with a stub in its group


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StackFolder]:
    own = StackFolder(tmp_path / "checkout" / ".labs" / "s")
    own.run_dir().mkdir(parents=True)
    yield own
    groups.end(groups.groups(own))
    assert not any(group.members() for group in groups.groups(own))
    while STARTED:
        STARTED.pop().communicate()


STARTED: list[subprocess.Popen[bytes]] = []


def start(folder: StackFolder, script: str = STUB) -> subprocess.Popen[bytes]:
    argv, log, ended = ["sh", "-c", script], folder.log_file(), folder.ended_file()
    STARTED.append(groups.spawn(folder, "server", argv, os.environ, log, folder.run_dir(), outlive=True, ended=ended))
    return STARTED[-1]


def only(folder: StackFolder) -> ProcessGroup:
    (group,) = groups.groups(folder)
    return group


def test_a_part_is_found_with_all_its_processes_and_ended_whole(folder: StackFolder) -> None:
    process = start(folder)
    group = only(folder)
    assert (group.part, group.number, group.leader.pid) == ("server", None, process.pid)
    members = eventually(lambda: len(found := group.members()) == 4 and found)
    assert members[0].pid == process.pid
    groups.end([group])
    assert group.members() == []


@pytest.mark.parametrize("outlive", [True, False])
def test_a_part_that_the_state_file_does_not_name_never_begins(
    folder: StackFolder, outlive: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the command is killed between the two."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    started: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def note_process(*words: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*words, **options))
        return started[-1]

    monkeypatch.setattr("labkit.disk.atomic_write", interrupted)
    monkeypatch.setattr(subprocess, "Popen", note_process)
    begun = folder.path / "begun"
    with pytest.raises(KeyboardInterrupt):
        groups.spawn(folder, "server", ["touch", str(begun)], os.environ, folder.log_file(), folder.path, outlive)
    (process,) = started
    assert process.wait(60) and not begun.exists()


def test_stubs_whose_server_was_killed_with_its_shell_are_found_in_their_group(folder: StackFolder) -> None:
    process = start(folder)
    group = only(folder)
    eventually(lambda: len(group.members()) == 4)
    for member in group.members()[:2]:
        member.kill()
    process.wait()
    assert eventually(lambda: len(found := group.members()) == 2 and found)
    groups.end([group])
    assert group.members() == []


@pytest.mark.parametrize(
    ("script", "how"),
    [("exit 0", "exit status 0"), ("exit 3", "exit status 3"), ("kill -SEGV $$", "killed by SIGSEGV")],
)
def test_how_a_server_ended_is_kept_and_its_stubs_end_with_it(folder: StackFolder, script: str, how: str) -> None:
    start(folder, f"sleep 600 & {script}").wait()
    assert groups.how_it_ended(folder.ended_file()) == how
    eventually(lambda: not only(folder).members())


SAID = "the engine is dead (CUDA error: an illegal memory access)"
LOG = f"E1129 pb_stub.cc:1 {SAID}: this server ends; labctl restart begins it anew\nI1129 server.cc:1 Shutting down\n"
RESTARTED = 'I1129 grpc_server.cc:2562 "Started GRPCInferenceService at 127.0.0.1:8001"\n'


@pytest.mark.parametrize(
    ("ended", "log", "how"),
    [(0, LOG, SAID), (134, LOG, SAID), (0, "", "exit status 0"), (137, LOG + RESTARTED, "killed by SIGKILL")],
    ids=["told to end", "aborted meanwhile", "no reason in its log", "killed after a restart"],
)
def test_a_server_ended_for_a_dead_engine_if_its_own_log_says_so(
    tmp_path: Path, ended: int, log: str, how: str
) -> None:
    runtime = LocalRuntime(Workspace(tmp_path, tmp_path / "cache"))
    folder = runtime.workspace.folder("one")
    folder.path.mkdir(parents=True)
    folder.ended_file().write_text(f"{ended}\n")
    record = Record("one", "lab", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"))
    folder.log_file().write_text(log)
    assert runtime.state(record).death == how


def test_sigterm_is_the_servers_and_its_end_is_kept(folder: StackFolder) -> None:
    process = start(folder, "trap 'exit 7' TERM; echo up; while :; do sleep 0.01; done")
    eventually(lambda: folder.log_file().read_text())
    os.killpg(process.pid, signal.SIGTERM)
    process.wait()
    assert groups.how_it_ended(folder.ended_file()) == "exit status 7"


@pytest.mark.parametrize("text", ["", "x", "[]"])
def test_a_server_of_which_no_shell_tells_ended_nobody_knows_how(folder: StackFolder, text: str) -> None:
    folder.ended_file().write_text(text)
    assert groups.how_it_ended(folder.ended_file()) is None


# In the place of setpriv, below a parent of that name: asks the kernel for the signal when the parent has ended.
LATE = """#!/bin/sh
parent=$PPID
case $(cat /proc/$parent/comm) in {name}*)
    touch {waits}
    while [ "$(ps -o ppid= -p $$ | tr -d ' ')" = "$parent" ]; do sleep 0.01; done
esac
exec {setpriv} "$@"
"""


@pytest.mark.parametrize("late", [None, "python", "sh"])
def test_the_kernel_ends_a_part_with_the_process_that_it_belongs_to(
    folder: StackFolder, tmp_path: Path, late: str | None
) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from labctl.runtimes import groups\n"
        "from labctl.workspace import StackFolder\n"
        "own = StackFolder(Path(sys.argv[1])); log, ended = own.log_file(), own.ended_file()\n"
        "groups.spawn(own, 'server', ['sleep', '600'], os.environ, log, own.run_dir(), outlive=False, ended=ended)\n"
        "print('started', flush=True); time.sleep(600)"
    )
    waits, tools = tmp_path / "waits", tmp_path / "bin"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if late:
        tools.mkdir()
        (tools / "setpriv").write_text(LATE.format(name=late, waits=waits, setpriv=shutil.which("setpriv")))
        (tools / "setpriv").chmod(0o755)
        env["PATH"] = f"{tools}:{env['PATH']}"
    argv = [sys.executable, "-c", code, str(folder.path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as run:
        assert run.stdout and run.stdout.readline()
        eventually(
            waits.exists if late else lambda: ["sleep", "600"] in [each.cmdline() for each in only(folder).members()]
        )
        run.kill()
    eventually(lambda: not only(folder).members())


def name_otherwise(folder: StackFolder, **changed: object) -> None:
    name_group(folder.state_file, "server", read_state(folder.state_file)["groups"]["server"] | changed)


@pytest.mark.parametrize("changed", [{"started": 1.0}, {"boot": "another"}], ids=["pid-reused", "rebooted"])
def test_a_number_that_another_process_has_by_now_is_not_ours(folder: StackFolder, changed: dict[str, object]) -> None:
    process = start(folder)
    true = folder.state_file.read_text()
    name_otherwise(folder, **changed)
    assert only(folder).members() == []
    groups.end([only(folder)])
    assert process.poll() is None
    folder.state_file.write_text(true)


def test_a_copy_of_a_checkout_does_not_find_the_servers_of_the_first_and_a_moved_one_does(
    folder: StackFolder, tmp_path: Path
) -> None:
    start(folder)
    shutil.copytree(tmp_path / "checkout", tmp_path / "copy")
    assert only(StackFolder(tmp_path / "copy" / ".labs" / "s")).members() == []
    (tmp_path / "checkout").rename(tmp_path / "moved")
    moved = StackFolder(tmp_path / "moved" / ".labs" / "s")
    assert only(moved).members()
    groups.end(groups.groups(moved))


@pytest.mark.parametrize("group", [None, [], 1, {"pid": "x", "started": 1, "boot": ""}, {"pid": 1}])
def test_a_damaged_entry_names_no_group(folder: StackFolder, group: object) -> None:
    for damaged in ({"groups": {"server": group}}, {"groups": group}, group):
        folder.state_file.write_text(json.dumps(damaged))
        assert groups.groups(folder) == []


def test_a_record_that_is_written_or_cannot_be_read_leaves_the_groups_named(folder: StackFolder) -> None:
    start(folder)
    named = only(folder)
    record = Record("s", "lab", "local", "cpu", {}, ["m"], Endpoints("h:1", "h:2", "h:3"))
    record.write(folder.state_file)
    assert (only(folder), Record.read(folder.state_file)) == (named, record)
    folder.state_file.write_text(json.dumps(json.loads(folder.state_file.read_text()) | {"endpoints": None}))
    assert only(folder) == named


HALF_DEAD = """
import ctypes, platform, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # exit(2): of this thread alone
"""


def test_a_process_whose_first_thread_has_ended_is_waited_for_as_it_holds_its_ports(folder: StackFolder) -> None:
    argv = [sys.executable, "-c", HALF_DEAD]
    started = groups.spawn(folder, "server", argv, os.environ, folder.log_file(), folder.run_dir(), outlive=True)
    STARTED.append(started)
    eventually(lambda: Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
    assert [member.pid for member in only(folder).members()] == [started.pid]
    groups.end(groups.groups(folder))
    assert Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()[17] == "1"  # threads


def test_a_process_that_ends_while_a_servers_are_listed_is_left_out(
    folder: StackFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> int:
        raise psutil.NoSuchProcess(1)

    start(folder)
    server, stub, ended = (SimpleNamespace(pid=pid, ppid=ppid) for pid, ppid in ((7, int), (8, lambda: 7), (9, gone)))
    monkeypatch.setattr(ProcessGroup, "server", lambda group: server)
    with monkeypatch.context() as patches:
        patches.setattr(ProcessGroup, "members", lambda group: [server, ended, stub])
        assert groups.model_processes(folder) == [stub]
