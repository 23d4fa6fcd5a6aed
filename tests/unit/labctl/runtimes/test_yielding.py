"""A process that lets others go first: by its own niceness, and by its session's where the kernel has those."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import eventually

from labctl.runtimes.balancer import NICE, lower_priority

THREADED = "import threading; threading.Thread(target=input).start(); print(flush=True); input()"


@pytest.fixture
def server() -> Iterator[int]:
    """A process with two threads that leads its session; its number."""
    with subprocess.Popen(
        [sys.executable, "-c", THREADED], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout and process.stdout.readline()
        yield process.pid
        process.kill()


def test_every_thread_of_it_and_its_session_are_nice(server: int) -> None:
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    lower_priority(server)
    threads = [int(one.name) for one in Path(f"/proc/{server}/task").iterdir()]
    assert [os.getpriority(os.PRIO_PROCESS, thread) for thread in threads] == [min(ours + NICE, 19)] * 2
    session = Path(f"/proc/{server}/autogroup")
    assert not session.exists() or session.read_text().split()[-1] == str(NICE)
    assert os.getpriority(os.PRIO_PROCESS, 0) == ours


def test_the_session_is_asked_again_where_the_kernel_wants_to_be_asked_later(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[type[OSError]] = [BlockingIOError]
    write = Path.write_text

    def busy_once(path: Path, text: str, encoding: str) -> int:
        if answers:
            raise answers.pop()
        return write(path, text, encoding)

    monkeypatch.setattr(Path, "write_text", busy_once)
    lower_priority(server)
    assert not answers
    session = Path(f"/proc/{server}/autogroup")
    assert not session.exists() or session.read_text().split()[-1] == str(NICE)


def test_a_process_that_has_ended_is_no_fault() -> None:
    with subprocess.Popen([sys.executable, "-c", ""], start_new_session=True) as process:
        pass
    eventually(lambda: not Path(f"/proc/{process.pid}").exists())
    lower_priority(process.pid)
