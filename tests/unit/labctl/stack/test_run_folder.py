"""What a model may leave in its run folder: nothing there hangs a command, or keeps its stack up."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lab_errors import lab_error

from labctl import clock
from labctl.clock import Clock
from labctl.learn import server
from labctl.learn.faults import read_faults
from labctl.listener import Listener
from labctl.pages.live.tail import StepLogTail
from labctl.runtimes.record import Endpoints, Record, Replica
from labctl.stack import faults
from labctl.stack.down import take_down
from labctl.stack.session import Session
from labctl.stack.status import _effective
from labkit.evidence import slots, steplog
from labsched.log.steplog import WATCHED

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


class Stopping:
    """A runtime on which a stack stops at once."""

    def stop(self, listener: Listener, stack: str, force: bool = False, number: int | None = None) -> None:
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
    for name in (*READ, WATCHED):
        make(run_dir / name)
    assert look_at(session, run_dir) == NOTHING
    clock.ask_for_texts(run_dir)
    runtime: Any = Stopping()
    take_down(session, runtime, "s")


def test_a_folder_in_place_of_a_note_does_not_stop_the_end_of_the_exercise_server(session: Session) -> None:
    run_dir = session.workspace.folder(server.STACK).run_dir()
    (run_dir / "stuck-m-0.json").mkdir(parents=True)
    assert not server.stop_exercise_server(session)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_log_of_triton_that_is_no_file_is_an_error_and_hangs_no_client(
    run_dir: Path, make: Callable[[Path], None]
) -> None:
    make(run_dir / "triton.log")
    with lab_error("log-unreadable", "triton.log"):
        slots.read_slot_log(run_dir / "triton.log", "m")


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
