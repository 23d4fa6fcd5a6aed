"""Clients that share a process, and so a container: it is started once, and each client is a fork of it."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from labctl.listener import Listener
from labctl.runtimes import processes
from labctl.runtimes.actions import Action, Command
from labctl.runtimes.series import ended_of

# What such a process imports before its first client: with Python's own start this is 0.6 s of each client else.
PROGRAM = (
    "-m", "labctl.runtimes.series",
    "labkit.context", "labkit.lane", "labkit.clients.text_model",
    "labkit.workloads.engine_stream",
)  # fmt: skip


class Series:
    """Use as a context manager: leaving it ends the process, and the client that may be at work.

    Args:
        command: the process (``PROGRAM``).
        around: the time for which the process runs; what has to be there before it, and to go after it.
    """

    def __init__(self, title: str, command: Command, around: Callable[[], AbstractContextManager[object]]) -> None:
        self._title, self._command, self._around = title, command, around
        self._open = ExitStack()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Action[None]:
        """Start the process and return at once."""

        def do(listener: Listener) -> None:
            self._open.enter_context(self._around())
            self._process = self._open.enter_context(processes.fed(self._command, listener))

        return Action(self._title, do, [self._command])

    def client(self, title: str, argv: Sequence[str], context: Path) -> Action[int]:
        """Run a script to its end; gives its exit status.

        Args:
            argv: script and arguments, the last of which is its context, in paths as the client sees them.
            context: that file as this machine sees it.
        """
        line, ended = shlex.join(argv), ended_of(context)

        def do(listener: Listener) -> int:
            assert self._process
            listener.given(line)
            try:
                return processes.worked_on(self._process, line, ended)
            finally:
                ended.unlink(missing_ok=True)

        return Action(title, do, given=line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process = None
        self._open.__exit__(kind, error, trace)
