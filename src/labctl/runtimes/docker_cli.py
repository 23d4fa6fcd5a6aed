"""The ``docker`` command, called by python-on-whales. Each command is told to the listener and ends with its caller.

python-on-whales starts a command in our own session, with our environment and stdin, and leaves it running when its
caller is interrupted. So what it is given to call (``client_call``) is a shell that sets these right and then becomes
``docker``. It does not say what it starts. Python's own audit event of each process that starts has the words, by which
a command is shown and, when its caller is interrupted, found and ended.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

from labctl.listener import Listener
from labctl.runtimes import processes
from labctl.runtimes.processes import IF_PARENT_LIVES, LOOK_ABOVE

if TYPE_CHECKING:
    from python_on_whales import DockerClient  # takes a third of a second: it is imported where a command is called

Call = Callable[["DockerClient"], object]
HIDDEN = ("STACK_", "LABS_", "HUB_", "COMPOSE_")  # an exported variable that begins so would win over an env file
# In a session of its own Ctrl-C reaches us first, and its plugin, which is a process too, is in its group.
# `$0` is our own number.
BACKGROUND = f"""exec setsid setpriv --pdeathsig TERM sh -c '{IF_PARENT_LIVES} docker "$@"' "$0" "$@" </dev/null"""
# On our terminal, and without Compose's own progress, which is not its container's output.
# python-on-whales has --progress for `build` alone, so the shell says "compose" in its place.
QUIET = ["compose", "--progress", "quiet"]
FOREGROUND = (
    f"""shift; exec setpriv --pdeathsig TERM sh -c '{IF_PARENT_LIVES} docker {" ".join(QUIET)} "$@"' "$0" "$@\""""
)
ENDS_S = 10.0  # that a command has when it is asked to end

_hearing: ContextVar[Callable[[list[str]], None] | None] = ContextVar("_hearing", default=None)


@dataclass(frozen=True)
class DockerCall:
    """A method of python-on-whales' client, and the Compose project that it is called for.

    Attributes:
        call: it streams (``stream_logs``, ``stream``), except on a terminal.
        env_file: names the project, its Compose files and the values of their variables.
        files, project: in the place of an env file; with a project alone no Compose file is read.
        values: variables of the command beyond our own.
    """

    call: Call
    env_file: Path | None = None
    files: Sequence[Path] = ()
    project: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)

    def run_tool(
        self, listener: Listener, on_line: Callable[[str], None], merged: bool = False
    ) -> tuple[int, str, list[str]]:
        """Call a command and wait for its end: its exit status, its stdout ("" if merged), and its last lines.

        An exception of ``on_line``, Ctrl-C and SIGTERM end the command.

        Args:
            on_line: called with each line of its stderr as it appears.
            merged: its stdout is heard as its stderr is. Compose 2.26 reports a build there.
        """
        tail: collections.deque[str] = collections.deque(maxlen=30)
        out: list[str] = []

        def hear(source: str, line: bytes) -> None:
            text = line.decode(errors="replace")
            if source == "stdout" and not merged:
                out.append(text)
                return
            for part in filter(None, map(str.rstrip, text.splitlines())):  # a carriage return ends a line too
                tail.append(part)
                on_line(part)

        # As one stream, so that its lines come in the order in which they were written.
        code = self._stream(listener, f"{BACKGROUND} 2>&1" if merged else BACKGROUND, hear)
        return code, "".join(out), list(tail)

    def _stream(self, listener: Listener, script: str, hear: Callable[[str, bytes], None]) -> int:
        """Call a command, hear each of its lines ("stdout" or "stderr", and the line), and return its exit status."""
        from python_on_whales.exceptions import DockerException

        with _client(self, listener, script) as (client, started):
            stream = iter(cast("Iterable[tuple[str, bytes]]", self.call(client)))
            try:
                for source, line in stream:
                    hear(source, line)
            except DockerException as error:
                return error.return_code
            except BaseException:
                _end(started)
                with contextlib.suppress(DockerException):
                    collections.deque(stream, maxlen=0)  # python-on-whales waits for its process
                raise
        return 0

    def run_to_end(self, listener: Listener, failed: str, remedy: str = LOOK_ABOVE, *, code: str) -> Sequence[str]:
        """Call a command that must succeed, and return its last lines; all that it writes is progress.

        Raises LabError: ``failed``, with that code.
        """
        status, _, tail = self.run_tool(listener, listener.progress, merged=True)
        processes.require_success(status, tail, failed, remedy, code=code)
        return tail

    def run_step(self, listener: Listener, argv: Sequence[str]) -> str:
        """Do in a container what :func:`processes.run_step` does here."""
        return processes.step_output(*self.run_tool(listener, processes.step_progress(listener)), argv)

    def run_foreground(self, listener: Listener, terminal: bool) -> int:
        """Call a command on our own stdin, stdout and stderr, and return its exit status (negative: the signal).

        Ctrl-C reaches both of us.

        Args:
            terminal: the call has ``tty``. Else it has ``stream``, and we write each line when it is whole.
        """
        from python_on_whales.exceptions import DockerException

        if not terminal:
            return self._stream(listener, FOREGROUND, _write_through)
        with _terminal_restored(), _client(self, listener, FOREGROUND) as (client, _):
            try:
                self.call(client)
            except DockerException as error:
                return error.return_code
        return 0


@contextlib.contextmanager
def _client(call: DockerCall, listener: Listener, script: str) -> Iterator[tuple[DockerClient, list[list[str]]]]:
    """Yield a client for a call, and the list of what it has started: the words after ``docker``."""
    from python_on_whales import DockerClient

    hidden = [word for name in os.environ if name.startswith(HIDDEN) for word in ("-u", name)]
    given = [f"{name}={value}" for name, value in call.values.items()]
    words = ["env", *hidden, *given, "sh", "-c", script, str(os.getpid())]
    env_files: list[str | Path] = [call.env_file] if call.env_file else []
    started: list[list[str]] = []

    def hear(argv: list[str]) -> None:
        arguments = argv[len(words) :]
        started.append(arguments)
        shown = [*QUIET, *arguments[1:]] if script is FOREGROUND else arguments
        listener.command(["docker", *shown], call.values)

    client = DockerClient(
        client_call=words,
        compose_files=list(call.files),
        compose_project_name=call.project,
        compose_env_files=env_files,
        # Else a .env file of the folder in which labctl is called would count.
        compose_project_directory="/" if call.project and not call.files else None,
    )
    _hear_processes()
    token = _hearing.set(hear)
    try:
        yield client, started
    finally:
        _hearing.reset(token)


@functools.cache
def _hear_processes() -> None:
    """Have ``_hearing`` called with the words of each process that starts from now on (PEP 578)."""

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and (hearing := _hearing.get()):
            hearing([*map(str, arguments[1])])

    sys.addaudithook(hear)


def _write_through(source: str, line: bytes) -> None:
    """Write a line of a command to our own stdout or stderr."""
    stream = sys.stdout if source == "stdout" else sys.stderr
    stream.buffer.write(line)
    stream.flush()


def _end(started: Sequence[Sequence[str]]) -> None:
    """End the commands that were started and are running: asked first, then forced."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if not any(child.cmdline()[-len(words) :] == words for words in started):
                continue
            processes.send_to_group(child.pid, signal.SIGTERM)
            try:
                child.wait(ENDS_S)
            except (psutil.TimeoutExpired, KeyboardInterrupt):
                processes.send_to_group(child.pid, signal.SIGKILL)
                child.wait()


@contextlib.contextmanager
def _terminal_restored() -> Iterator[None]:
    """Give the terminal back as it was when a block is cut short: who had it has been killed."""
    before = termios.tcgetattr(0) if os.isatty(0) else None
    try:
        yield
    except BaseException:
        if before is not None and os.tcgetpgrp(0) == os.getpgrp():  # a job in the background would be stopped
            termios.tcsetattr(0, termios.TCSADRAIN, before)
        raise
