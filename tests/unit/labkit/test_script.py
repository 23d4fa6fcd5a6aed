"""A lab's client ends in words: a fault, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from labctl.catalog import Catalog
from labctl.labs.run import SCRIPT, run_script
from labctl.listener import Silent
from labctl.runtimes import processes
from labctl.runtimes.processes import Command
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
