"""The keeper of a local server: the limit on the server's files is no limit on what it prints."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.runtimes import processes
from labctl.runtimes.base import UNLOADED, unloaded_check
from labkit.disk import atomic_write

LARGEST = 2**20


def kept(
    tmp_path: Path, program: str, *options: str, longest_log: int = 2**30
) -> tuple[subprocess.CompletedProcess[bytes], Path]:
    """A program under a keeper that allows no file of more than LARGEST bytes, and its log."""
    log = tmp_path / "server.log"
    argv = [sys.executable, "-m", "labctl.runtimes.keeper", "--ended", str(tmp_path / "ended.json")]
    argv += ["--regions", "no-region-", "--largest", str(LARGEST), "--longest-log", str(longest_log), *options]
    argv += ["--", sys.executable, "-c", program]
    with log.open("ab") as stream:
        return subprocess.run(argv, stdout=stream, stderr=subprocess.STDOUT, check=False), log


def test_print_goes_on_beyond_the_largest_file_that_the_server_may_write(tmp_path: Path) -> None:
    done, log = kept(tmp_path, f"print('x' * {3 * LARGEST}, flush=True); print('still here')")
    assert done.returncode == 0
    assert log.stat().st_size > 3 * LARGEST
    assert log.read_text().endswith("still here\n")


def test_a_file_of_the_server_is_still_bounded(tmp_path: Path) -> None:
    region = tmp_path / "region"
    done, log = kept(tmp_path, f"open({str(region)!r}, 'wb').write(b'x' * {3 * LARGEST})")
    assert done.returncode
    assert region.stat().st_size == LARGEST
    assert "File too large" in log.read_text()


def test_a_log_that_is_too_long_loses_its_older_half_and_says_so(tmp_path: Path) -> None:
    program = "for n in range(20000): print(f'line {n}', flush=n % 100 == 0)"
    done, log = kept(tmp_path, program, longest_log=2**16)
    assert done.returncode == 0
    first, *lines = log.read_text().splitlines()
    assert "its older half was dropped" in first
    assert log.stat().st_size <= 2**16 + 2**16  # one read of the pipe more than the limit, at most
    numbers = [int(line.removeprefix("line ")) for line in lines]
    assert numbers == list(range(numbers[0], 20000))


def test_the_last_words_of_a_server_that_dies_stand_before_how_it_ended(tmp_path: Path) -> None:
    done, log = kept(tmp_path, "import os; print('last words', flush=True); os.kill(os.getpid(), 9)")
    assert done.returncode == -9
    assert [line.partition(":")[0] for line in log.read_text().splitlines()] == ["last words", "labctl"]


def test_a_log_that_became_shorter_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("old\n" * 1000)
    said = unloaded_check(log)
    turns = iter(range(5))  # after these pauses the writer has gone
    lines = processes.follow_file(log, lambda: next(turns, None) is not None, lambda seconds: None)
    assert next(lines) == "old"
    log.write_text(f"{UNLOADED}\n")
    assert said()
    assert list(lines)[-1] == UNLOADED


def test_a_log_that_another_took_the_place_of_is_read_once_and_then_the_other(tmp_path: Path) -> None:
    """`labctl logs --follow` of a stack whose replica is restarted: its new log is a new file of the same name."""
    log = tmp_path / "server.log"
    log.write_text("old\n" * 3)
    looks = iter(range(5))
    lines = processes.follow_file(log, lambda: next(looks, None) is not None, lambda seconds: None)
    assert next(lines) == "old"
    atomic_write(log, "new\n")
    assert list(itertools.islice(lines, 10)) == ["old", "old", "new"]


def test_a_log_that_is_removed_is_read_to_its_end(tmp_path: Path) -> None:
    """`labctl logs --follow` while the stack is scaled down: the logs of replicas that go are removed."""
    log = tmp_path / "server.log"
    log.write_text("first\nlast\n")
    looks = iter(range(5))
    lines = processes.follow_file(log, lambda: next(looks, None) is not None, lambda seconds: None)
    assert next(lines) == "first"
    log.unlink()
    assert list(lines) == ["last"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_costs_lines_of_the_log_and_no_print(tmp_path: Path) -> None:
    (tmp_path / "server.log").symlink_to("/dev/full")
    done, _ = kept(tmp_path, "print('x' * 100, flush=True)")
    assert done.returncode == 0
