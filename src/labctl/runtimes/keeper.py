"""The parent of a server on the local runtime: it alone learns how the server ended.

It outlives the command that started it, and ends when and as the server does. SIGTERM is handed on. What a dead server
leaves (its stubs, their shared memory) goes at once. The server prints into a pipe, and the keeper writes that to the
log: the limit on the server's files is not one on its log, and a full disk costs lines of the log but never a request.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

NAME = "labs-keeper"  # by which a runtime finds it among the processes of a machine
HIDE_EVERY_S = 0.25
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
LARGEST_REGION = 64 * 2**20  # bytes; a text that is larger is refused before it is copied into shared memory for good
LONGEST_LOG = 64 * 2**20  # bytes; the older half of a longer log is dropped
LAST_WORDS_S = 2.0  # for what a server that has ended still has in the pipe
_LIBC = ctypes.CDLL(None)  # loaded before fork: the child may only call it


def die_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent has ended."""
    _LIBC.prctl(PR_SET_PDEATHSIG, number)


def take_name(name: str) -> None:
    """The name of this process among the machine's."""
    _LIBC.prctl(PR_SET_NAME, name.encode())


def describe_exit(code: int) -> str:
    """An exit status in words; a negative one is the signal that ended the process."""
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


class Log:
    """The log of bounded length that a descriptor appends to; others (Envoy) may append to the same file."""

    def __init__(self, handle: int, longest: int) -> None:
        self._handle, self._longest = handle, longest

    def copy(self, pipe: int) -> None:
        """Append what comes out of a pipe until its last writer has closed it."""
        while data := os.read(pipe, 65536):
            with contextlib.suppress(OSError):  # a full disk: the server goes on, without this part of its log
                os.write(self._handle, data)
                if os.fstat(self._handle).st_size > self._longest:
                    self._shorten()
        os.close(pipe)

    def _shorten(self) -> None:
        with Path(f"/proc/self/fd/{self._handle}").open("rb") as whole:
            whole.seek(-self._longest // 2, os.SEEK_END)
            newer = whole.read()
        os.ftruncate(self._handle, 0)
        note = f"labctl: the log was longer than {self._longest / 2**20:g} MiB: its older half was dropped here\n"
        os.write(self._handle, note.encode() + newer[newer.find(b"\n") + 1 :])


class _Keeper:
    """Keeps one server until it ends."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._log = options, Log(sys.stdout.fileno(), options.longest_log)
        self._server: subprocess.Popen[bytes] | None = None
        self._stopping, self._until = False, math.inf

    def stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping, self._until = True, time.monotonic() + self._options.grace
        if self._server:
            self._server.send_signal(number)

    def keep(self) -> int:
        """The exit status of the server; negative: the signal that ended it."""
        read_end, write_end = os.pipe()
        self._server = subprocess.Popen(
            self._options.argv,
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its stubs share its group, and are found by it
            preexec_fn=self._limit,
        )
        if self._stopping:  # SIGTERM came while the server was being started
            self._server.send_signal(signal.SIGTERM)
        os.close(write_end)
        copying = threading.Thread(target=self._log.copy, args=(read_end,), daemon=True)
        copying.start()
        code = self._wait(self._server)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._server.pid, signal.SIGKILL)  # stubs whose server has gone wait for it for ever
        copying.join(LAST_WORDS_S)
        if self._stopping or code == 0:
            return code
        how = describe_exit(code)
        temporary: Path = self._options.ended.with_suffix(".new")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps({"how": how}))
            temporary.replace(self._options.ended)
        with contextlib.suppress(OSError):
            print(f"labctl: the server ended: {how}", flush=True)
        for region in self._regions():
            region.unlink(missing_ok=True)
        return code

    def _limit(self) -> None:
        """Of the server, before it begins: it ends with its keeper, and no region of its shared memory is larger."""
        die_with_parent()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then what goes beyond it fails, and nobody dies of it
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._options.largest, self._options.largest))

    def _wait(self, server: subprocess.Popen[bytes]) -> int:
        """Its exit status. Meanwhile its shared memory is its owner's alone: Boost gives it to everybody to read."""
        while True:
            try:
                return server.wait(HIDE_EVERY_S)
            except subprocess.TimeoutExpired:
                if time.monotonic() > self._until:
                    os.killpg(server.pid, signal.SIGKILL)
                for region in self._regions():
                    with contextlib.suppress(OSError):  # it has just gone
                        region.chmod(0o600)

    def _regions(self) -> Iterator[Path]:
        return Path("/dev/shm").glob(f"{self._options.regions}*")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m labctl.runtimes.keeper")
    parser.add_argument("--ended", type=Path, required=True, help="the file that says how the server died")
    parser.add_argument("--regions", required=True, help="how the names of its shared memory begin")
    parser.add_argument("--largest", type=int, default=LARGEST_REGION, help="bytes of any file, and so of a region")
    parser.add_argument("--longest-log", type=int, default=LONGEST_LOG, help="bytes")
    parser.add_argument("--grace", type=float, default=math.inf, help="seconds to end in, once told to stop")
    parser.add_argument("argv", nargs="+")
    keeper = _Keeper(parser.parse_args())
    take_name(NAME)
    signal.signal(signal.SIGTERM, keeper.stop)
    code = keeper.keep()
    if code < 0:  # the same end, without a core of our own
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        _LIBC.prctl(4, 0)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()
