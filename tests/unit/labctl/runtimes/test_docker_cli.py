"""A call of python-on-whales: its command's environment, its lines, how it fails, and that it ends with its caller."""

from __future__ import annotations

import functools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from lab_errors import lab_error
from process_states import ended
from waiting import eventually

from labctl.listener import Silent
from labctl.runtimes.docker_cli import DockerCall

UP = DockerCall(lambda docker: docker.compose.up(["triton"], detach=True, stream_logs=True), Path("/stack/compose.env"))
WORDS = ["compose", "--env-file", "/stack/compose.env", "up", "--detach", "triton"]
NOTE = """
import json, os, sys
note = {"argv": sys.argv[1:], "environment": dict(os.environ), "stdin": os.readlink("/proc/self/fd/0"),
        "session": os.getsid(0) == os.getpid(), "folder": os.getcwd()}
"""


def fake_docker(folder: Path, program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``docker`` on PATH that is that Python program."""
    tool = folder / "docker"
    tool.write_text(f"#!{sys.executable}\n{program}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def client(terminal: bool) -> DockerCall:
    """A client of a lab, as the compose runtime calls it."""
    return DockerCall(
        lambda docker: docker.compose.run("client", tty=terminal, stream=not terminal), Path("/stack/compose.env")
    )


class Hearing(Silent):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.commands: list[tuple[list[str], Mapping[str, str]]] = []
        self.lines: list[str] = []

    def command(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.commands.append(([*argv], env or {}))

    def progress(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in which a ``docker`` writes down how it was started."""
    path = tmp_path / "noted"
    fake_docker(tmp_path, f"{NOTE}\nopen({str(path)!r}, 'w').write(json.dumps(note))", monkeypatch)
    return path


@pytest.fixture
def stdin(tmp_path: Path) -> Iterator[Path]:
    """A file that is our stdin."""
    path, before = tmp_path / "stdin", os.dup(0)
    path.touch()
    with path.open() as file:
        os.dup2(file.fileno(), 0)
    try:
        yield path
    finally:
        os.dup2(before, 0)
        os.close(before)


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_command_that_the_listener_is_told_is_the_one_that_runs(noted: Path) -> None:
    listener = Hearing()
    UP.run_to_end(listener, "it failed", code="command-failed")
    assert listener.commands == [(["docker", *WORDS], {})]
    assert read(noted)["argv"] == WORDS


@pytest.mark.parametrize("terminal", [False, True])
def test_a_client_is_told_as_it_runs_too(noted: Path, terminal: bool) -> None:
    listener = Hearing()
    assert client(terminal).run_foreground(listener, terminal) == 0
    words = ["compose", "--progress", "quiet", "--env-file", "/stack/compose.env", "run"]
    words += ["client"] if terminal else ["--no-TTY", "client"]
    assert listener.commands == [(["docker", *words], {})]
    assert read(noted)["argv"] == words


def test_a_process_that_python_on_whales_did_not_start_is_not_told(noted: Path) -> None:
    listener = Hearing()
    UP.run_to_end(listener, "it failed", code="command-failed")
    subprocess.run(["true"], check=True)
    assert len(listener.commands) == 1


def test_what_a_person_exports_reaches_no_compose_and_what_a_call_has_does(
    noted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compose would take an exported variable before the file's."""
    for name in ("STACK_HTTP_PORT", "LABS_WHEELS", "HUB_PORT", "COMPOSE_PROFILES", "OTHER"):
        monkeypatch.setenv(name, "exported")
    call = DockerCall(UP.call, files=[Path("/compose.yaml")], project="p", values={"STACK_HTTP_PORT": "a b\n$c"})
    call.run_to_end(Silent(), "it failed", code="command-failed")
    environment = read(noted)["environment"]
    assert environment["STACK_HTTP_PORT"] == "a b\n$c"
    assert [name for name, value in environment.items() if value == "exported"] == ["OTHER"]
    assert os.environ["STACK_HTTP_PORT"] == "exported"


def test_a_command_that_is_not_on_the_terminal_has_a_session_of_its_own_and_no_stdin(noted: Path, stdin: Path) -> None:
    """Ctrl-C reaches us first, and what is piped into labctl is not a container's."""
    UP.run_to_end(Silent(), "it failed", code="command-failed")
    found = read(noted)
    assert found["session"] and found["stdin"] == os.devnull


@pytest.mark.parametrize("terminal", [False, True])
def test_a_client_has_our_session_and_our_stdin(noted: Path, stdin: Path, terminal: bool) -> None:
    client(terminal).run_foreground(Silent(), terminal)
    found = read(noted)
    assert not found["session"] and found["stdin"] == str(stdin)


def test_no_file_of_the_folder_in_which_labctl_is_called_counts_for_a_project_by_name(noted: Path) -> None:
    DockerCall(UP.call, project="p").run_to_end(Silent(), "it failed", code="command-failed")
    assert read(noted)["argv"][:5] == ["compose", "--project-name", "p", "--project-directory", "/"]


def test_a_failed_command_is_an_error_with_its_status_and_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(
        tmp_path,
        "import sys\nfor number in range(40): print(number, file=sys.stderr)\nprint('at\\rlast', file=sys.stderr)\n"
        "sys.exit(17)",
        monkeypatch,
    )
    listener = Hearing()
    with lab_error("command-failed", "exit status 17") as caught:
        UP.run_to_end(listener, "it failed", code="command-failed")
    assert list(caught.value.details) == [*map(str, range(12, 40)), "at", "last"]
    assert listener.lines == [*map(str, range(40)), "at", "last"]


def test_stdout_and_the_lines_of_stderr_are_kept_apart_where_both_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_docker(tmp_path, "import sys\nprint('a result')\nprint('progress', file=sys.stderr)\nsys.exit(3)", monkeypatch)
    lines: list[str] = []
    assert UP.run_tool(Silent(), lines.append) == (3, "a result\n", ["progress"])
    assert lines == ["progress"]


def test_stdout_and_stderr_that_are_heard_as_one_come_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build is reported on stdout, and why it failed on stderr."""
    fake_docker(
        tmp_path,
        "import sys\nfor number in range(20): print(number, file=(sys.stdout, sys.stderr)[number % 2], flush=True)",
        monkeypatch,
    )
    lines: list[str] = []
    assert UP.run_tool(Silent(), lines.append, merged=True) == (0, "", [*map(str, range(20))])
    assert lines == [*map(str, range(20))]


@pytest.mark.parametrize("terminal", [False, True])
def test_the_exit_status_of_a_client_is_the_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    fake_docker(tmp_path, "import sys\nsys.exit(130)", monkeypatch)
    assert client(terminal).run_foreground(Silent(), terminal) == 130


def test_what_a_client_without_a_terminal_writes_is_written_to_our_own_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Compose gives a container no terminal where its stdin is none, and refuses to where stdout alone is one."""
    fake_docker(tmp_path, "import sys\nprint('out')\nprint('err', file=sys.stderr)", monkeypatch)
    assert client(terminal=False).run_foreground(Silent(), terminal=False) == 0
    assert capfd.readouterr() == ("out\n", "err\n")


# -- ends with its caller ----------------------------------------------------------------------------------------------

WORKS = """
import os, signal, sys
if {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
else: signal.signal(signal.SIGTERM, lambda *_: (open({asked!r}, 'w').close(), sys.exit()))
ends, command = os.pipe()
if not (plugin := os.fork()):
    os.close(command)
    os.read(ends, 1)  # as docker's own plugins: it ends with the command
    os._exit(0)
os.close(ends)
open({pids!r} + '.new', 'w').write(f'{{os.getpid()}} {{plugin}}')
os.rename({pids!r} + '.new', {pids!r})
print('works', file=sys.stderr, flush=True)
while True: signal.pause()
"""


def working_docker(folder: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool = False) -> tuple[Path, Path]:
    """A ``docker`` with its plugin that works until it is ended: where it says that it was asked to, and its pids."""
    asked, pids = folder / "asked", folder / "pids"
    fake_docker(folder, WORKS.format(deaf=deaf, asked=str(asked), pids=str(pids)), monkeypatch)
    return asked, pids


def pids_in(path: Path) -> list[int]:
    return [int(pid) for pid in eventually(lambda: path.exists() and path.read_text()).split()]


@pytest.mark.parametrize("deaf", [False, True], ids=["asked", "forced"])
def test_a_command_that_still_works_when_its_caller_is_cut_short_is_ended_with_its_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    asked, pids = working_docker(tmp_path, monkeypatch, deaf)
    monkeypatch.setattr("labctl.runtimes.docker_cli.ENDS_S", 0.3 if deaf else 60.0)

    def cut_short(line: str) -> None:
        raise SystemExit  # as SIGTERM does

    with pytest.raises(SystemExit):
        UP.run_tool(Silent(), cut_short)
    assert asked.exists() is not deaf
    for pid in pids_in(pids):
        eventually(functools.partial(ended, pid))


CALLER = """
import signal, sys
from pathlib import Path
from labctl.listener import Silent
from labctl.runtimes.docker_cli import DockerCall
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
IN_BACKGROUND = f"""{CALLER}
call = DockerCall(lambda docker: docker.compose.up(detach=True, stream_logs=True), Path('/stack/compose.env'))
call.run_to_end(Silent(), 'it failed', code='command-failed')
"""
ON_TERMINAL = f"""{CALLER}
call = DockerCall(lambda docker: docker.compose.run('client', tty=True), Path('/stack/compose.env'))
call.run_foreground(Silent(), True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_that_ends_labctl_ends_its_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    asked, pids = working_docker(tmp_path, monkeypatch)
    with subprocess.Popen([sys.executable, "-c", IN_BACKGROUND], stderr=subprocess.DEVNULL) as process:
        docker, _ = pids_in(pids)
        process.send_signal(number)
    eventually(lambda: ended(docker))
    eventually(asked.exists)


def test_the_terminal_is_as_before_when_its_command_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container with a terminal has it raw, and a docker that is killed does not give it back."""
    ready = tmp_path / "ready"
    fake_docker(
        tmp_path,
        f"import signal, tty\ntty.setraw(0)\nopen({str(ready)!r}, 'w').close()\nwhile True: signal.pause()",
        monkeypatch,
    )
    pid, terminal = pty.fork()
    if not pid:
        os.execv(sys.executable, [sys.executable, "-c", ON_TERMINAL])
    import termios

    try:
        before = termios.tcgetattr(terminal)
        eventually(ready.exists)
        assert termios.tcgetattr(terminal) != before
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        assert termios.tcgetattr(terminal) == before
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
