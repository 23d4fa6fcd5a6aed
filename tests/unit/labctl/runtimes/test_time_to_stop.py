"""Stopping a server: nothing that is in flight is cut short, and nobody waits for a connection alone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from waiting import eventually

from labctl.runtimes.base import LINGER_S, UNLOADED, Unloaded, wait_until_stopped
from labctl.runtimes.groups import is_alive
from labctl.runtimes.local import unloaded_check


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes only where somebody sleeps."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    return now


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "server.log"
    path.write_text(f'I1122 "Timeout 7: {UNLOADED}"\n')  # of the server before
    return path


def test_servers_that_have_unloaded_their_models_linger_a_moment_and_no_longer(clock: list[float], log: Path) -> None:
    said = unloaded_check(log)

    def living() -> list[Unloaded]:
        if clock[0] > 3:
            log.write_text(f'{log.read_text()}I1122 "Timeout 8: {UNLOADED}"\n')
        return [said, lambda: clock[0] > 5]

    assert wait_until_stopped(living, 15)
    assert 5 + LINGER_S <= clock[0] < 5 + 2 * LINGER_S


def test_a_server_with_something_in_flight_has_all_its_time(clock: list[float], log: Path) -> None:
    said = unloaded_check(log)
    log.write_text(f"{log.read_text()}Timeout 9: Found 1 live models and 0 in-flight non-inference requests")
    assert not wait_until_stopped(lambda: [said, lambda: True], 15)
    assert clock[0] >= 15


def test_servers_that_have_ended_are_waited_for_no_more(clock: list[float], log: Path) -> None:
    said = unloaded_check(log)
    assert wait_until_stopped(lambda: [said] if clock[0] < 2 else [], 15)
    assert clock[0] < 3


def test_a_server_that_nobody_has_reaped_is_not_waited_for() -> None:
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        server = psutil.Process(int(parent.stdout.readline()))
        assert is_alive(server)
        server.kill()
        eventually(lambda: not is_alive(server))
        assert psutil.pid_exists(server.pid), "its parent does not look after it"
    eventually(lambda: not psutil.pid_exists(server.pid))
    assert not is_alive(server)
