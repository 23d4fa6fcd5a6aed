"""What processes waited for a processor, by the kernel's files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from labsched import run_queue
from labsched.run_queue import RunQueue


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_queue, "PROC", tmp_path)
    return tmp_path


def account(proc: Path, pid: int, thread: int, waited: float) -> None:
    """The kernel's account of a thread: nanoseconds on a processor, nanoseconds that it waited, turns."""
    folder = proc / str(pid) / "task" / str(thread)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "schedstat").write_text(f"5 {waited * 1e9:.0f} 7\n")


def test_a_process_has_waited_as_long_as_the_thread_that_waited_longest_and_processes_add_up(proc: Path) -> None:
    for pid, thread in ((1, 1), (1, 2), (8, 8)):
        account(proc, pid, thread, 100.0)
    pids = [1, 8]
    queue = RunQueue(lambda: pids)
    assert queue.waited() == 0
    account(proc, 1, 1, 103.0)
    account(proc, 1, 2, 107.0)
    account(proc, 8, 8, 101.0)
    account(proc, 9, 9, 2.0)
    assert queue.waited() == pytest.approx(7 + 1)
    pids.append(9)  # it began meanwhile
    assert queue.waited() == pytest.approx(7 + 1 + 2)


def test_a_process_that_ends_while_its_threads_are_listed_is_left_out(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pid in (1, 8):
        account(proc, pid, pid, 100.0)
    queue, scandir = RunQueue(lambda: (1, 8)), os.scandir

    def ended(path: Any) -> Any:
        if Path(path) == proc / "8" / "task":
            raise FileNotFoundError(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", ended)
    account(proc, 1, 1, 103.0)
    assert queue.waited() == pytest.approx(3)


def test_a_kernel_that_counts_no_waiting_says_that_nobody_waited(proc: Path) -> None:
    (proc / "1" / "task" / "1").mkdir(parents=True)
    (proc / "1" / "task" / "1" / "schedstat").write_text("")
    assert RunQueue(lambda: (1, 2)).waited() == 0


def test_a_kernel_that_counts_only_when_any_program_waited_says_that(proc: Path) -> None:
    (proc / "pressure").mkdir()
    pressure = proc / "pressure" / "cpu"
    pressure.write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=5000000\nfull avg10=0.00\n")
    queue = RunQueue(lambda: (1, 2))
    pressure.write_text("some avg10=1.00 avg60=1.00 avg300=1.00 total=8000000\nfull avg10=0.00\n")
    assert queue.waited() == 3
