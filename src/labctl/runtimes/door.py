"""The OpenAI-compatible front (``labdoor``): a program of its own beside a stack, on loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

from labctl.listener import Listener
from labctl.runtimes import processes
from labctl.runtimes.leftovers import marks
from labctl.runtimes.processes import Action, Command
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit import nofollow
from labkit.errors import LabError

PACKAGES = ("openai", "starlette", "uvicorn", "jinja2")
PATIENCE_S, LOOK_S = 60.0, 0.1


def url(port: int) -> str:
    """The base URL that a client of OpenAI's is given."""
    return f"http://127.0.0.1:{port}/v1"


def command(record: Record, port: int, announce: str = "") -> Command:
    """The program in front of a running stack. Raises LabError: it cannot run in this environment."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise LabError(
            "the OpenAI API cannot be served here",
            f"not installed: {', '.join(missing)}",
            "make setup (or: pip install -e '.[openai]')",
        )
    argv = [sys.executable, "-m", "labdoor", "--endpoint", record.endpoints.grpc, "--models", ",".join(record.models)]
    argv += ["--tokenizer", record.tokenizer_dir, "--port", str(port)]
    return Command([*argv, "--announce", announce] if announce else argv)


def beside(workspace: Workspace, record: Record, port: int) -> Action[str]:
    """Start it as a process that goes with the stack; gives its base URL.

    Raises:
        LabError: as of :func:`command`; or, when it is carried out, it does not come up.
    """
    started, log = command(record, port), workspace.folder(record.stack).path / "openai.log"

    def do(listener: Listener) -> str:
        _start(started, workspace, record, port, listener, outlive=record.owner is None)
        return url(port)

    return Action("the OpenAI API", do, [started], [str(log)], expected=url(port))


@contextlib.contextmanager
def during(workspace: Workspace, record: Record, port: int, listener: Listener) -> Iterator[str]:
    """It for the time of a block; its base URL. Raises LabError as :func:`beside`."""
    process = _start(command(record, port), workspace, record, port, listener, outlive=False)
    try:
        yield url(port)
    finally:
        process.kill()  # it holds nothing
        process.wait()


def _start(
    started: Command, workspace: Workspace, record: Record, port: int, listener: Listener, outlive: bool
) -> subprocess.Popen[bytes]:
    """Start it, and wait until it answers."""
    log = workspace.folder(record.stack).path / "openai.log"
    listener.command(started.argv)
    env = {**os.environ, **marks(workspace.root, record.stack)}
    process = processes.spawn(started.argv, env, log, workspace.root, outlive)
    deadline = time.monotonic() + PATIENCE_S
    while not _answers(port):
        if process.poll() is not None or time.monotonic() > deadline:
            how = processes.describe_exit(process.returncode) if process.poll() is not None else "no answer"
            process.kill()
            tail = nofollow.read_text(log).splitlines()[-5:]
            failed = "the OpenAI API did not come up; the stack itself is up"
            raise LabError(failed, how, f"labctl openai {record.stack}", details=tail)
        time.sleep(LOOK_S)
    return process


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
