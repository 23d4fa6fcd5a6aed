"""New lines of a stack's step logs, as they are written."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from labsched.log.files import open_to_read
from labsched.log.steplog import parse_step_line

RECENT_BYTES = 2 * 2**20  # of each log: for a page that comes later, and at most at a time


@dataclass
class _File:
    inode: int
    place: int  # up to which it is read
    rest: bytes = b""  # of a line that is not complete


class StepLogTail:
    """Follows ``steps-*.jsonl`` of a folder; a file that was rotated or started over is read from its start."""

    def __init__(self, folder: Path, take: Callable[[bytes], dict[str, Any] | None] = parse_step_line) -> None:
        self._folder, self._take = folder, take
        self._files: dict[str, _File] = {}

    def read(self) -> Sequence[Mapping[str, Any]]:
        """The lines that were written since the last call, in order of time; at first the recent ones."""
        lines: list[Mapping[str, Any]] = []
        for path in self._folder.glob("steps-*.jsonl"):
            if not path.stem.rpartition(".")[2].isdigit():  # else it was rotated, and is read already
                lines += self._lines(path)
        return sorted(lines, key=lambda line: line["t"])

    def _lines(self, path: Path) -> list[Mapping[str, Any]]:
        try:
            with open_to_read(path) as stream:
                status = os.fstat(stream.fileno())
                file = self._files.get(path.name)
                last: list[Mapping[str, Any]] = []
                if file is None:
                    file = self._files[path.name] = _File(status.st_ino, max(0, status.st_size - RECENT_BYTES))
                elif file.inode != status.st_ino or status.st_size < file.place:
                    last = self._last_lines(path, file)
                    file = self._files[path.name] = _File(status.st_ino, 0)
                return last + self._new_lines(file, stream)
        except OSError:
            return []

    def _last_lines(self, path: Path, file: _File) -> list[Mapping[str, Any]]:
        """What was written to a file after the last look at it, and before it was rotated."""
        with contextlib.suppress(OSError), open_to_read(path.with_suffix(".1.jsonl")) as stream:
            if os.fstat(stream.fileno()).st_ino == file.inode:
                return self._new_lines(file, stream)
        return []

    def _new_lines(self, file: _File, stream: BinaryIO) -> list[Mapping[str, Any]]:
        stream.seek(file.place)
        data = stream.read(RECENT_BYTES)
        file.place += len(data)
        *texts, file.rest = (file.rest + data).split(b"\n")
        return [line for text in texts if (line := self._take(text)) is not None]
