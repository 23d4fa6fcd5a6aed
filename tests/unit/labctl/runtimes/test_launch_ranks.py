"""docker/launch-ranks.sh stays as long as the ranks do: a container whose command ends is a container that ends."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from checkout import ROOT

SCRIPT = ROOT / "docker" / "launch-ranks.sh"
DEADLINE_S = 20


@pytest.fixture
def ranks() -> Iterator[subprocess.Popen[bytes]]:
    """What stands for mpirun."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("name", ["mpirun", "prterun"])
def test_the_ranks_are_found_by_either_name_of_openmpis_launcher(tmp_path: Path, name: str) -> None:
    """OpenMPI 5 replaces mpirun by prterun."""
    (pattern,) = re.findall(r"pgrep -n '?([^' )]+)'?", SCRIPT.read_text())
    launcher = tmp_path / name
    launcher.symlink_to(shutil.which("sleep") or "")
    with subprocess.Popen([launcher, "60"]) as process:
        deadline = time.monotonic() + DEADLINE_S
        found = ""
        while str(process.pid) not in found.split():
            assert time.monotonic() < deadline, f"pgrep {pattern} does not find {name}"
            found = subprocess.run(["pgrep", pattern], capture_output=True, text=True, check=False).stdout
        process.kill()


@pytest.fixture
def script(tmp_path: Path, ranks: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[str]]:
    """The script over a launcher that tells what it was told; pgrep finds the ranks at its second try."""
    launcher = tmp_path / "launcher.py"
    launcher.write_text("import sys\nprint(*sys.argv[1:], flush=True)\n")
    (tmp_path / "python3").symlink_to(sys.executable)
    pgrep = tmp_path / "pgrep"
    pgrep.write_text(f"#!/bin/sh\n[ -e {tmp_path}/asked ] || {{ : > {tmp_path}/asked; exit 1; }}\necho {ranks.pid}\n")
    pgrep.chmod(0o755)
    argv = ["sh", str(SCRIPT), str(launcher), "2"]
    with subprocess.Popen(
        argv, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def told(script: subprocess.Popen[str]) -> str:
    assert script.stdout is not None
    return script.stdout.readline().strip()


def waits(pid: int) -> bool:
    """Whether the script has come to its own sleep, between two looks at the ranks."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return any(child.cmdline() == ["sleep", "1"] for child in psutil.Process(pid).children())
    return False


def test_the_releases_launcher_gets_the_ranks_and_the_repository(script: subprocess.Popen[str]) -> None:
    assert told(script) == "--world_size=2 --model_repo=/models"


def test_ranks_that_end_by_themselves_are_a_failure(
    script: subprocess.Popen[str], ranks: subprocess.Popen[bytes]
) -> None:
    told(script)
    ranks.kill()
    ranks.wait()
    assert script.wait(DEADLINE_S) == 1


def test_a_request_to_stop_reaches_the_ranks(script: subprocess.Popen[str], ranks: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not waits(script.pid):
        assert time.monotonic() < deadline, "it does not wait for its ranks"
    script.send_signal(signal.SIGTERM)
    assert ranks.wait(DEADLINE_S) == -signal.SIGTERM
    assert script.wait(DEADLINE_S) == 0
