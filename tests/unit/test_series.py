"""The clients of phases that share a server share a process: each is still its own, in its work and in its end."""

from __future__ import annotations

import _thread
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from lab_errors import lab_error
from waiting import eventually

from labctl.labs.run import run_script
from labctl.listener import Silent
from labctl.manifest.catalog import Catalog
from labctl.runtimes.processes import Command
from labctl.runtimes.series import Series
from labctl.stack.session import Session
from labctl.workspace import Workspace

CLIENT = """\
import json, os, sys, time
from pathlib import Path
from labkit.errors import LabError
context = Path(sys.argv[1])
context.with_suffix(".pid").write_text(str(os.getpid()))
print(sys.stdin.read(), end="")
"""


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def command(self, *_: object) -> None:
        self.lines.append("$")

    def given(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@contextlib.contextmanager
def series(heard: Heard, *modules: str) -> Iterator[Series]:
    command = Command([sys.executable, "-m", "labctl.runtimes.series", *modules])
    with Series(command, contextlib.nullcontext) as made:
        made.start(heard)
        yield made


def client(heard: Heard, made: Series, folder: Path, name: str, text: str) -> int:
    script, context = folder / f"{name} client.py", folder / f"context-{name}.json"
    script.write_text(CLIENT + text)
    context.write_text("{}")
    return made.client(heard, [str(script), str(context)], context)


def pid_of(folder: Path, name: str) -> int:
    path = folder / f"context-{name}.pid"
    eventually(lambda: path.is_file() and path.read_text())
    return int(path.read_text())


def test_clients_run_one_after_another_in_processes_of_their_own_that_one_has_started(
    tmp_path: Path, heard: Heard, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "assert 'xmlrpc' in sys.modules and 'poplib' not in sys.modules; import poplib; print(sys.argv[0])"
    with series(heard, "xmlrpc") as made:
        codes = [client(heard, made, tmp_path, name, text) for name in ("one", "two")]
    assert codes == [0, 0]
    scripts = [str(tmp_path / f"{name} client.py") for name in ("one", "two")]
    assert capfd.readouterr().out.split("\n") == [*scripts, ""]
    assert pid_of(tmp_path, "one") != pid_of(tmp_path, "two")
    lines = [
        shlex.join([script, str(tmp_path / f"context-{n}.json")])
        for script, n in zip(scripts, ("one", "two"), strict=True)
    ]
    assert heard.lines == ["$", *lines]
    assert not list(tmp_path.glob("*.ended"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("raise LabError('it is gone', code='gone')", 1),
        ("sys.exit(7)", 7),
        ("raise KeyboardInterrupt", 130),
        ("os.kill(os.getpid(), 9)", -9),
    ],
)
def test_a_client_that_fails_is_that_phases_failure_and_the_next_one_runs(
    tmp_path: Path, heard: Heard, text: str, code: int
) -> None:
    with series(heard) as made:
        assert client(heard, made, tmp_path, "bad", text) == code
        assert client(heard, made, tmp_path, "good", "") == 0


def test_the_end_of_the_process_itself_is_the_failure_of_the_phase_that_was_at_work(
    tmp_path: Path, heard: Heard
) -> None:
    session = Session(Workspace(Path(), Path()), Catalog(()), heard)
    with series(heard) as made:
        bad = partial(client, heard, made, tmp_path, "bad", "os.kill(os.getppid(), 9); time.sleep(600)")
        with lab_error("phase-failed", "SIGKILL"):
            run_script(bad, session, "it failed")
        eventually(lambda: not psutil.pid_exists(pid_of(tmp_path, "bad")))
        assert client(heard, made, tmp_path, "late", "") == -signal.SIGKILL


def test_a_block_that_is_cut_short_ends_the_client_that_is_at_work(tmp_path: Path, heard: Heard) -> None:
    def interrupt() -> None:
        pid_of(tmp_path, "long")
        _thread.interrupt_main()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt), series(heard) as made:
        client(heard, made, tmp_path, "long", "time.sleep(600)")
    eventually(lambda: not psutil.pid_exists(pid_of(tmp_path, "long")))


def test_a_client_ends_with_the_labctl_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from test_series import Heard, client, series\n"
        "with series(Heard()) as made: client(Heard(), made, Path(sys.argv[1]), 'long', 'time.sleep(600)')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    ) as process:
        client_pid = pid_of(tmp_path, "long")
        process.kill()
    eventually(lambda: not psutil.pid_exists(client_pid))
