"""What a server writes into its run folder is never followed: a link there leads labctl, which may be root, nowhere."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl.clock import clock, texts
from labctl.clock.clock import Clock
from labctl.learn import server
from labctl.learn.faults import read_faults
from labctl.listener import Listener
from labctl.pages.live.tail import StepLogTail
from labctl.runtimes.compose import ComposeRuntime
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack import faults
from labctl.stack.down import take_down
from labctl.stack.replicas import make_room
from labctl.stack.session import Session
from labctl.stack.status import _effective
from labkit import nofollow
from labkit.evidence import slot_log, steplog

PLACE = Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")
RECORD = Record("s", "lab", "local", "cpu", {}, ["m"], PLACE, balance="l7", servers=[Replica(9, PLACE)])
STEP = {"t": 2.0, "dur": 1.0, "model": "m", "instance": "m_0", "ids": ["1"]}
READ = (
    "clock.json",
    "clock-m-0.json",
    "clock-m.claims",
    "stuck-m.json",
    "effective.json",
    "steps-m.jsonl",
    "faults-m-0.jsonl",
)
FAULT = {"words": "ValueError", "line": 1, "exception": True}


@pytest.fixture
def run_dir(session: Session) -> Path:
    folder = session.workspace.folder("s").run_dir()
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder of somebody's, with a file under each name that labctl reads, writes or removes in a run folder."""
    folder = tmp_path / "outside"
    folder.mkdir()
    for name in READ:
        (folder / name).write_text(
            json.dumps({**STEP, **FAULT, "state": "held", "modes": {}, "v": 1, "models": {}}) + "\n"
        )
    return folder


def contents(folder: Path) -> dict[str, Any]:
    """Everything about a folder and what is in it but when it was last read."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_ctime_ns, path.lstat().st_uid) for path in paths}


class Stopping:
    """A runtime on which a stack stops at once."""

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int = 0) -> None:
        pass

    def leftovers(self, stack: str) -> list[str]:
        return []


def look_at(session: Session, folder: Path) -> list[Any]:
    """All that commands read in a run folder."""
    stopped = Clock(folder, ("m",))
    return [
        stopped.modes(),
        stopped.states("m"),
        stopped._begun("m", "grant"),
        faults.stuck_sentences(folder),
        steplog.read_step_log(folder),
        list(StepLogTail(folder).read()),
        read_faults(folder, 0.0),
        dict(_effective(session, RECORD)),
    ]


NOTHING = [{}, [], 0, [], [], [], [], {}]


def use_all(session: Session, folder: Path) -> None:
    """All that commands write and remove there, down at last."""
    runtime: Any = Stopping()
    texts.ask_for_texts(folder)
    for change in (Clock(folder, ("m",)).pause, Clock(folder, ("m",)).run):
        change()
    take_down(session, runtime, "s")


def test_a_link_in_place_of_a_replicas_folder_leads_nowhere_and_the_stack_goes_down(
    session: Session, run_dir: Path, outside: Path
) -> None:
    before = contents(outside)
    (run_dir / "replica-9").symlink_to(outside)
    assert nofollow.folders(run_dir) == [run_dir]
    assert not steplog.read_step_log(run_dir) and not read_faults(run_dir, 0.0)
    use_all(session, run_dir)
    with lab_error("path-not-own", "replica-9"):
        make_room(session.workspace, RECORD, RECORD.servers)
    with lab_error("clock-unusable", "replica-9"):
        Clock(run_dir / "replica-9", ("m",)).pause()
    assert contents(outside) == before


def test_links_in_place_of_files_lead_nowhere_and_the_stack_goes_down(
    session: Session, run_dir: Path, outside: Path
) -> None:
    for name in (*READ, texts.WATCHED):
        (run_dir / name).symlink_to(outside / name)  # the last one dangles
    before = contents(outside)
    assert look_at(session, run_dir) == NOTHING
    use_all(session, run_dir)
    assert contents(outside) == before


def test_a_run_folder_that_a_model_holds_locked_keeps_no_command(
    session: Session, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "LOCK_S", 0.0)
    handle = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with lab_error("clock-locked"):
            Clock(run_dir, ("m",)).pause()
        runtime: Any = Stopping()
        take_down(session, runtime, "s")
    finally:
        os.close(handle)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_fifos_and_folders_in_place_of_files_hang_nothing_and_the_stack_goes_down(
    session: Session, run_dir: Path, make: Callable[[Path], None]
) -> None:
    for name in (*READ, texts.WATCHED):
        make(run_dir / name)
    assert look_at(session, run_dir) == NOTHING
    texts.ask_for_texts(run_dir)
    runtime: Any = Stopping()
    take_down(session, runtime, "s")


def test_a_folder_in_place_of_a_note_does_not_stop_the_end_of_the_exercise_server(session: Session) -> None:
    run_dir = session.workspace.folder(server.STACK).run_dir()
    (run_dir / "stuck-m-0.json").mkdir(parents=True)
    assert not server.stop_exercise_server(session)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_log_of_triton_that_is_no_file_is_an_error_and_hangs_no_client(
    run_dir: Path, make: Callable[[Path], None]
) -> None:
    make(run_dir / "triton.log")
    with lab_error("log-unreadable", "triton.log"):
        slot_log.read_slot_log(run_dir / "triton.log", "m")


@pytest.mark.parametrize(
    "text",
    [
        "null",
        '"x"',
        "5",
        "[]",
        '{"models": 5}',
        '{"models": {"m": 5}}',
        "[" * 100_000,
        "\xff",
        "",
        '{"models": {"m": {"mode": "pause", "until": "x"}}}',
        '{"model": "m", "steps": 1, "since": 1e300, "file": "f", "line": 1}',
    ],
    ids=lambda text: ascii(text[:40]),
)
def test_json_of_another_type_in_a_run_folder_is_ignored(session: Session, run_dir: Path, text: str) -> None:
    for name in READ:
        (run_dir / name).write_text(text, encoding="latin-1")
    found = look_at(session, run_dir)
    assert found[:-1] == NOTHING[:-1]
    assert isinstance(found[-1], dict)


class Gone(ComposeRuntime):
    """Containers that go as they are told to, without an engine."""

    def leftovers(self, stack: str) -> list[str]:
        return ["container c"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_what_a_container_wrote_is_handed_back_and_nothing_outside_is(
    session: Session, run_dir: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = outside / "secret"
    secret.write_text("mine")
    os.chown(secret, 1234, 1234)
    (run_dir / "replica-1").mkdir()
    for name, target in (("file", secret), ("folder", outside), ("dangling", outside / "nothing")):
        (run_dir / name).symlink_to(target)
        (run_dir / "replica-1" / name).symlink_to(target)
    nofollow.give_all(run_dir, 65534)
    before = contents(outside)
    monkeypatch.setattr("labctl.runtimes.processes.run_tool", lambda *arguments: (0, "", []))
    Gone(session.workspace).stop(session.listener, "s", force=True)
    assert {path.lstat().st_uid for path in (run_dir, *run_dir.rglob("*"))} == {0}
    assert contents(outside) == before
