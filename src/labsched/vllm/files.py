"""The files of a recording: a thread of its own writes them, so that a step of the server never waits for a disk.

A recording of one server is a row of files, `vllm-STARTED-PROCESS-RANK.NUMBER.jsonl`. A file is closed when it is
full, and the oldest files of the folder go when all of them together are more than the environment's LABS_RECORD_MIB.
Several servers may record into one folder: each locks the file that it writes, and only files with such a name that no
server has locked are deleted.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import Any

from labsched.log.files import open_to_read

PREFIX = "vllm-"  # the prefix of the files' names
NAME = re.compile(rf"({PREFIX}\d{{8}}-\d{{9}}-\d+-\d+)\.\d{{6,}}\.jsonl", re.ASCII)
LIMIT, USUAL_MIB = "LABS_RECORD_MIB", 256
BLOCK_HASH_BYTES = 6  # of each block of a sequence, in the field `hashes`
FILES = 8  # of a whole recording, at most
FLUSH_S = 0.25  # between two writes: so much is lost where the process is killed
MOST_EVENTS = 200_000  # may wait for a slow disk; with more the recording ends
log = logging.getLogger("vllm.labsched")  # below vLLM's own, so that its lines stand in vLLM's log
ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder for each line
Line = dict[str, Any]


class Files:
    """Takes events, makes lines of them in its thread and appends them.

    Args:
        folder: it is made where it is not there.
        name: of this recording, unique in the folder.
        lines: what an event is in the files; called in the thread, in the order of the events. None: time has passed.
        begin: called for each new file: its first lines.
        most_bytes: of all files of the folder together.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        lines: Callable[[Any], list[Line]],
        begin: Callable[[], list[Line]],
        most_bytes: int,
    ) -> None:
        self._folder = folder
        self._name = name
        self._lines = lines
        self._begin = begin
        self._most = most_bytes
        self._file: FileIO | None = None
        self._size = 0  # of that file
        self._number = 0  # of that file
        self._events: deque[Any] = deque()
        self._wake = threading.Event()
        self._closing = False
        self.open = True  # whether events are still taken
        self._thread = threading.Thread(target=self._run, name="labsched recorder", daemon=True)
        self._thread.start()

    def add(self, event: Any) -> None:
        """Have an event written. It costs less than a microsecond, and nothing is written here."""
        if self.open:
            self._events.append(event)
            if len(self._events) > MOST_EVENTS:
                self.stop("the disk does not keep up")

    def stop(self, why: str) -> None:
        """End the recording, with one line in vLLM's log. The server goes on."""
        if self.open:
            self.open = False
            self._events.clear()
            log.warning("the recording in %s has ended: %s. vLLM goes on without it.", self._folder, why)

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is left, and end."""
        self._closing = True
        self._wake.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._turn_over()
            while self.open:
                last = self._closing
                if self._file and not os.fstat(self._file.fileno()).st_nlink:  # a person has deleted it
                    self._turn_over()
                self._write()
                if last:
                    break
                self._wake.wait(FLUSH_S)
        except OSError as error:  # full, read-only, gone
            self.stop(error.strerror or str(error))
        except Exception as error:
            self.stop(f"{type(error).__name__}: {error}")
        finally:
            self.open = False
            if self._file:
                self._file.close()

    def _write(self) -> None:
        texts: list[bytes] = []
        size = 0
        for _ in range(len(self._events)):
            try:
                event = self._events.popleft()
            except IndexError:  # stopped meanwhile
                return
            for line in self._lines(event):
                texts.append(_encoded(line))
                size += len(texts[-1])
            if self._size + size > self._most // FILES:
                self._append(texts)
                self._turn_over()
                texts, size = [], 0
        texts += [_encoded(line) for line in self._lines(None)]
        self._append(texts)

    def _append(self, texts: list[bytes]) -> None:
        data = b"".join(texts)
        while data and self._file:
            written = self._file.write(data) or 0
            self._size += written
            data = data[written:]

    def _turn_over(self) -> None:
        """Begin a new file, and delete the oldest of the folder where there are too many bytes."""
        if self._file:
            self._file.close()
        self._number += 1
        path = self._folder / f"{self._name}.{self._number:06}.jsonl"
        self._file = FileIO(str(path), "x")
        with contextlib.suppress(OSError):  # a file system without locks: no other server deletes from it either
            fcntl.flock(self._file, fcntl.LOCK_EX)
        self._size = 0
        files: list[tuple[float, int, Path]] = []  # when each was written to last, its size and its path
        for file in recorded_files(self._folder):
            with contextlib.suppress(OSError):  # another server has deleted it
                status = file.lstat()
                if stat.S_ISREG(status.st_mode):
                    files.append((status.st_mtime, status.st_size, file))
        whole = sum(size for _, size, _ in files) + self._most // FILES  # this one will grow
        for _, size, file in sorted(files):
            if whole > self._most and file != path:
                with contextlib.suppress(OSError):
                    if run_of(file) == self._name or not is_locked(file):
                        file.unlink(missing_ok=True)
                        whole -= size
        self._append([_encoded(line) for line in self._begin()])


def run_of(file: Path) -> str:
    """The recording to which a file belongs, by its name; "" for a file that no recorder has made."""
    found = NAME.fullmatch(file.name)
    return found[1] if found else ""


def recorded_files(folder: Path) -> list[Path]:
    """The files of a folder that have a recorder's name, those of one recording in their order."""
    return sorted(file for file in folder.glob(f"{PREFIX}*.jsonl") if run_of(file))


def is_locked(file: Path) -> bool:
    """Whether a server still writes the file. Raises OSError: it cannot be read, or there are no locks here."""
    with open_to_read(file) as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _encoded(line: Line) -> bytes:
    return ENCODE(line).encode() + b"\n"


def recording_name(rank: int) -> str:
    """A name for the recording of this process: they sort by the time at which the servers were started."""
    now = time.time()
    started = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    milliseconds = int(now % 1 * 1000)
    return f"{PREFIX}{started}{milliseconds:03}-{os.getpid()}-{rank}"


def most_bytes() -> int:
    """The most bytes of all files, by the environment. Raises ValueError: the variable is not a number."""
    return int(float(os.environ.get(LIMIT, USUAL_MIB)) * 2**20)
