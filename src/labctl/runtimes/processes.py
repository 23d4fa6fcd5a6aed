"""Start processes, and tell the listener of each command.

Every child dies with us (``PR_SET_PDEATHSIG``). Servers, which may outlive the command, are started in ``groups``, and
``docker`` is started by python-on-whales (``docker_cli``).
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import os
import queue
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import psutil

from labctl.listener import Listener
from labkit.errors import LabError

LOOK_S = 0.02
CHUNK, MOST_OUTPUT = 64 * 1024, 16 * 2**20  # bytes; of a child's output
LOOK_ABOVE = "the last lines show why"
TEXT: Mapping[str, Any] = {"encoding": "utf-8", "errors": "replace"}  # of a child's output
PR_SET_PDEATHSIG = 1  # prctl(2)
# The start of a script for a shell that `setpriv --pdeathsig` runs; "$0" is the parent's number. If the parent ended
# before setpriv asked the kernel for a signal, none comes: then the shell has another parent, and ends.
IF_PARENT_LIVES = '[ "$PPID" = "$0" ] && exec'
_LIBC = ctypes.CDLL(None)  # loaded before fork: the child may only call it


@dataclass(frozen=True)
class Command:
    """A process and its variables beyond our own.

    Attributes:
        hidden: prefixes of our own variables that it does not get.
        grace: seconds that it has to end when it is asked to.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path | None = None
    hidden: tuple[str, ...] = ()
    grace: float = 10.0


def die_with(parent: int) -> None:
    """Have the kernel send this process SIGTERM when its parent ends, and end it where that has ended already."""
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)


def describe_exit(code: int) -> str:
    """An exit status in words; a negative one is the signal that ended the process."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


@contextlib.contextmanager
def _child(command: Command, listener: Listener, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process in a group of its own, so that Ctrl-C reaches us first; it ends with us, and with the block."""
    listener.command(command.argv, command.env)
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(command.hidden)}
    options = {
        "stdin": subprocess.DEVNULL,
        "start_new_session": True,
        "preexec_fn": functools.partial(die_with, os.getpid()),
        "env": {**inherited, **command.env},
        "cwd": command.cwd,
        **options,
    }
    with subprocess.Popen(command.argv, **options) as process:
        try:
            yield process
        finally:
            _end(process, command.grace)


def _end(process: subprocess.Popen[Any], grace: float) -> None:
    """End a child, and its group where that is its own: asked first, then forced."""
    if process.poll() is None:
        send_to_group(process.pid, signal.SIGTERM)
        try:
            process.wait(grace)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            with contextlib.suppress(psutil.NoSuchProcess):  # its children share our group, or have their own
                for started in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        started.kill()
            send_to_group(process.pid, signal.SIGKILL)
            process.wait()


def send_to_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a child of ours that has not been waited for, and to its group where that is its own."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, number)
        else:
            os.kill(pid, number)


def run_tool(
    command: Command, listener: Listener, on_line: Callable[[str], None], merged: bool = False
) -> tuple[int, str, list[str]]:
    """Run a command to its end: its exit status, its stdout ("" if merged), and the last lines of its stderr.

    Args:
        on_line: called with each line of its stderr as it appears (a carriage return ends a line too).
        merged: its stdout is heard as its stderr is.
    """
    tail: collections.deque[str] = collections.deque(maxlen=30)
    out: list[str] = []
    err = subprocess.STDOUT if merged else subprocess.PIPE
    with contextlib.ExitStack() as cleaning:
        try:
            process = cleaning.enter_context(_child(command, listener, stdout=subprocess.PIPE, stderr=err, **TEXT))
        except OSError as error:
            raise LabError(
                f"cannot run {command.argv[0]}", error.strerror or str(error), code="command-not-started"
            ) from error
        stdout = cast(IO[str], process.stdout)

        def read() -> None:
            with contextlib.suppress(ValueError):  # it was closed before this thread ran: nobody waits for it any more
                out.append(stdout.read())

        reading = threading.Thread(target=read, daemon=True)
        if process.stderr:
            reading.start()
        for line in process.stderr or stdout:
            if text := line.rstrip():
                tail.append(text)
                on_line(text)
        if process.stderr:
            reading.join()
        return process.wait(), "".join(out), list(tail)


def require_success(status: int, tail: Sequence[str], failed: str, remedy: str, *, code: str) -> None:
    """Raise LabError ``failed``, with its last lines, for a command that has ended with another status than 0."""
    if status:
        raise LabError(failed, describe_exit(status), remedy, details=tail, code=code)


def run_step(command: Command, listener: Listener, argv: Sequence[str]) -> str:
    """Run a step that makes weights or engines; its stdout. Raises its own LabError, one line of its stderr."""
    return step_output(*run_tool(command, listener, step_progress(listener)), argv)


def step_progress(listener: Listener) -> Callable[[str], None]:
    """Return what hears the lines of a step's stderr: all but its own LabError are progress."""
    return lambda line: None if line.startswith(LabError.MARK) else listener.progress(line)


def step_output(code: int, out: str, tail: Sequence[str], argv: Sequence[str]) -> str:
    """Return a step's stdout. Raises LabError where it has failed: the step's own, if its last lines have one."""
    if not code:
        return out
    for line in tail:
        if line.startswith(LabError.MARK):
            raise LabError.from_json(line.removeprefix(LabError.MARK))
    raise LabError(f"{' '.join(argv[:2])} failed", describe_exit(code), "", details=tail, code="command-failed")


def run_foreground(command: Command, listener: Listener) -> int:
    """Run a command on this terminal and return its exit status (negative: the signal that ended it)."""
    # It stays in our process group, so that it owns the terminal; Ctrl-C reaches both of us.
    with _child(command, listener, stdin=None, start_new_session=False) as process:
        return int(process.wait())


def follow_file(path: Path, alive: Callable[[], bool], wait: Callable[[float], object]) -> Iterator[str]:
    """The lines of a growing file, until its writer is gone and all is read; then of a file that took its place."""
    with contextlib.ExitStack() as closing:
        stream = closing.enter_context(path.open(**TEXT))
        buffer = ""
        while True:
            running = alive()
            if chunk := stream.read():
                *complete, buffer = (buffer + chunk).split("\n")
                yield from complete
                continue
            replaced = _is_replaced(path, stream)
            if buffer and (replaced or not running):
                yield buffer
                buffer = ""
            if replaced:
                stream.close()
                stream = closing.enter_context(path.open(**TEXT))
            elif running:
                wait(0.2)
            else:
                return


def _is_replaced(path: Path, stream: IO[str]) -> bool:
    """Whether another file has the name of an open one now: the new log of a replica that was restarted."""
    with contextlib.suppress(FileNotFoundError):  # the log of a replica that is gone
        return not os.path.samestat(path.stat(), os.fstat(stream.fileno()))
    return False


class ShortRun(NamedTuple):
    """A command that has ended: its exit status, and what it wrote."""

    code: int
    out: str
    err: str


def run_short(
    argv: Sequence[str], cwd: Path, seconds: float, given: str = "", more: Callable[[], float] = lambda: 0.0
) -> ShortRun | None:
    """Run a short command and all that it starts. None: it took longer. Raises OSError.

    It is over when it has ended itself: a child that has left its session may hold the pipes for longer. Of each stream
    the last MOST_OUTPUT bytes are returned.

    Args:
        more: the seconds that it gets when these are over, asked until there are none.
    """
    pipe = subprocess.PIPE
    with _child(Command(argv, cwd=cwd), Listener(), stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            written = _until_ended(process, given.encode(), seconds, more)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if written is None:
        return None
    return ShortRun(process.returncode, *(text.decode(TEXT["encoding"], TEXT["errors"]) for text in written))


def _until_ended(
    process: subprocess.Popen[bytes], given: bytes, seconds: float, more: Callable[[], float]
) -> list[bytearray] | None:
    """Write what is given, and return what a child wrote until it ended. None: it has not ended in time."""
    deadline = time.monotonic() + seconds
    written = [bytearray(), bytearray()]
    with selectors.DefaultSelector() as streams:
        for stream, kept in ((process.stdin, None), *zip((process.stdout, process.stderr), written, strict=True)):
            assert stream
            os.set_blocking(stream.fileno(), False)
            streams.register(stream, selectors.EVENT_WRITE if kept is None else selectors.EVENT_READ, kept)
        while True:
            ended = process.poll() is not None  # before its streams are read: then they hold all that it wrote
            late = time.monotonic() > deadline
            moved = False
            for key, _ in streams.select(0 if ended else LOOK_S):
                if (kept := key.data) is None:
                    try:
                        given = given[os.write(key.fd, given[:CHUNK]) :]
                    except BrokenPipeError:
                        given = b""
                    open_still = bool(given)
                else:
                    kept += (data := os.read(key.fd, CHUNK))
                    del kept[:-MOST_OUTPUT]
                    open_still = bool(data)
                    moved = moved or open_still
                if not open_still:
                    streams.unregister(key.fileobj)
                    cast(IO[bytes], key.fileobj).close()
            if ended and (late or not moved):
                return written
            if late:
                if not (seconds := more()):
                    return None
                deadline = time.monotonic() + seconds


def as_they_come(streams: Sequence[Iterator[str]]) -> Iterator[str]:
    """The lines of several streams; whatever one of them raises."""
    if len(streams) == 1:
        yield from streams[0]
        return
    arrived: queue.Queue[str | Exception | None] = queue.Queue()

    def read(stream: Iterator[str]) -> None:
        try:
            for line in stream:
                arrived.put(line)
            arrived.put(None)
        except Exception as error:
            arrived.put(error)

    for stream in streams:
        threading.Thread(target=read, args=(stream,), daemon=True).start()
    reading = len(streams)
    while reading:
        match arrived.get():
            case None:
                reading -= 1
            case Exception() as error:
                raise error
            case line:
                yield line
