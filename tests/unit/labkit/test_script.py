"""A lab's client ends in words: a fault, and Ctrl-C. Clients of phases that share a server share a process, too."""

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
from checkout import ROOT
from lab_errors import lab_error
from waiting import eventually

from labctl.labs.run import SCRIPT, run_script
from labctl.listener import Silent
from labctl.manifest.catalog import Catalog
from labctl.runtimes import processes
from labctl.runtimes.processes import Command
from labctl.runtimes.series import Series
from labctl.stack.session import Session
from labctl.workspace import Workspace

SESSION = Session(Workspace(Path(), Path()), Catalog(()), Silent())


def started(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    script = tmp_path / "client.py"
    (tmp_path / "beside.py").write_text("WORD = 'beside'\n")
    script.write_text(f"import sys, time\nfrom labkit.errors import LabError\nfrom beside import WORD\n{text}\n")
    return subprocess.Popen(
        [sys.executable, *SCRIPT, str(script), "one"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_script_is_run_as_python_itself_runs_it(tmp_path: Path) -> None:
    with started(tmp_path, "print(__name__, sys.argv[1:], WORD)") as process:
        assert process.communicate()[0] == "__main__ ['one'] beside\n"
    assert process.returncode == 0


def test_a_foreseeable_fault_is_a_sentence(tmp_path: Path) -> None:
    with started(tmp_path, "raise LabError('it is gone', 'who knows', 'look for it', code='gone')") as process:
        assert process.communicate()[1] == "error: it is gone\nwho knows\nTry: look for it\n"
    assert process.returncode == 1


def test_an_interrupted_script_ends_without_a_word(tmp_path: Path) -> None:
    with started(tmp_path, "print('begun', flush=True); time.sleep(600)") as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.communicate()[1] == ""
    assert process.returncode == 130


@pytest.mark.parametrize("how", ["kill -INT $$", "exit 130"])
def test_a_run_whose_client_alone_was_interrupted_is_interrupted(how: str) -> None:
    command = Command(["sh", "-c", how], dict(os.environ))
    with pytest.raises(KeyboardInterrupt):
        run_script(lambda: processes.run_foreground(command, SESSION.listener), SESSION, "it failed")


@pytest.mark.parametrize("words", [["-m", "labkit.script"], ["-c", "from labctl.cli.main import main; main([])"]])
def test_a_text_that_the_terminals_encoding_lacks_ends_nothing(tmp_path: Path, words: list[str]) -> None:
    script = tmp_path / "client.py"
    script.write_text("print('Seoul: 서울')\n")
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    if words[0] == "-c":
        words = ["-c", f"{words[1]}; print('Seoul: 서울')"]
    done = subprocess.run([sys.executable, *words, str(script)], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("Seoul: \\uc11c\\uc6b8\n")


# -- clients that share a process -------------------------------------------------------------------------------------

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
    return int(eventually(lambda: path.is_file() and path.read_text()))


def test_clients_run_one_after_another_in_processes_of_their_own_that_one_has_started(
    tmp_path: Path, heard: Heard, capfd: pytest.CaptureFixture[str]
) -> None:
    text = "assert 'xmlrpc' in sys.modules and 'poplib' not in sys.modules; import poplib; print(sys.argv[0])"
    with series(heard, "xmlrpc") as made:
        codes = [client(heard, made, tmp_path, name, text) for name in ("one", "two")]
    assert codes == [0, 0]
    asked = [[str(tmp_path / f"{n} client.py"), str(tmp_path / f"context-{n}.json")] for n in ("one", "two")]
    assert capfd.readouterr().out.split("\n") == [*(script for script, _ in asked), ""]
    assert pid_of(tmp_path, "one") != pid_of(tmp_path, "two")
    assert heard.lines == ["$", *map(shlex.join, asked)]
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
    with series(heard) as made:
        bad = partial(client, heard, made, tmp_path, "bad", "os.kill(os.getppid(), 9); time.sleep(600)")
        with lab_error("phase-failed", "SIGKILL"):
            run_script(bad, SESSION, "it failed")
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
        "import sys; from pathlib import Path; from test_script import Heard, client, series\n"
        "with series(Heard()) as made: client(Heard(), made, Path(sys.argv[1]), 'long', 'time.sleep(600)')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests" / "helpers")},
    ) as process:
        client_pid = pid_of(tmp_path, "long")
        process.kill()
    eventually(lambda: not psutil.pid_exists(client_pid))
