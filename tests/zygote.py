"""A labctl that is imported already: each command is a fork of it, and so a process of its own all the same.

Importing labctl is most of what a short command costs, and the tests run hundreds of them. Where the start itself, a
signal or a terminal matters, a test starts ``python -m labctl`` (``machinery.started``).
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LARGEST = 1 << 20  # bytes of a command with its environment
LARGE = "exercise"  # it imports gRPC
# What most commands import when they are called: two thirds of what `labctl status` takes.
COMMON = (
    "labctl.learn.idle",
    "labctl.learn.server",
    "labctl.runtimes.leftovers",
    "prometheus_client.parser",
    "encodings.idna",
)
Ended = subprocess.CompletedProcess[str]


def run(arguments: Sequence[str], cwd: Path, env: Mapping[str, str], timeout: float) -> Ended:
    """One command to its end, as ``subprocess.run`` does it.

    Raises:
        subprocess.TimeoutExpired: it was killed after ``timeout`` seconds.
    """
    asked = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)})
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line,
    ):
        line.connect(_started())
        socket.send_fds(line, [asked.encode()], [out.fileno(), err.fileno()])
        line.settimeout(timeout)
        pid = int(line.recv(100))
        try:
            code = int(line.recv(100))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(list(arguments), timeout) from None
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(list(arguments), code, out.read(), err.read())


@functools.cache
def _started() -> str:
    """Where this process's own one listens. It ends with us: then its stdin ends."""
    place = str(Path(tempfile.mkdtemp()) / "labctl")
    process = subprocess.Popen([sys.executable, __file__, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(process.communicate)
    assert process.stdout and process.stdout.readline() == b"ready\n"
    return place


def _serve(place: str) -> int:
    """Until stdin ends: a fork for each command. In a fork this returns the command's exit status."""
    from labctl.cli.commands import COMMANDS
    from labctl.manifest.catalog import load
    from labctl.repository import config
    from labctl.workspace import Workspace

    modules = {f"labctl.cli.{listed.module}" for listed in COMMANDS.values() if listed.module != LARGE}
    for module in ("labctl.cli.main", *modules, *COMMON):
        importlib.import_module(module)
    assert not {"grpc", "torch"} & set(sys.modules), "they do not survive a fork"
    load(Workspace.find(Path(__file__).parent))  # of a manifest that says the same nothing is worked out again
    config.parse_config("config.pbtxt", "")  # imports protobuf
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who wait for the commands
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as either:
        listener.bind(place)
        listener.listen()
        either.register(sys.stdin, selectors.EVENT_READ)
        either.register(listener, selectors.EVENT_READ)
        print("ready", flush=True)
        while not any(key.fileobj is sys.stdin for key, _ in either.select()):
            line = listener.accept()[0]
            if os.fork() == 0:
                return _answer(line)
            line.close()
    Path(place).unlink()
    Path(place).parent.rmdir()
    return 0


def _answer(line: socket.socket) -> int:
    """Fork once more: one is the command, the other tells how it ended, whatever ends it."""
    from labctl.cli.main import main

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    asked, (out, err), *_ = socket.recv_fds(line, LARGEST, 2)
    if pid := os.fork():
        line.send(str(pid).encode())
        line.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)
    line.close()
    command = json.loads(asked)
    os.environ.clear()
    os.environ.update(command["env"])
    os.chdir(command["cwd"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(ours, theirs)
        os.close(ours)
    sys.argv = ["labctl", *command["arguments"]]
    return main()


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1]))
