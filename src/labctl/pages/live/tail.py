"""New lines of a stack's step logs, as they are written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labkit import nofollow
from labsched.steplog import parse_step_line

RECENT_BYTES = 2 * 2**20  # of each log: for a page that comes later, and at most at a time


@dataclass
class _File:
    inode: int
    place: int
    rest: bytes = b""


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
            with nofollow.open_to_read(path) as stream:
                status = os.fstat(stream.fileno())
                known = self._files.get(path.name)
                if known is None:
                    known = self._files[path.name] = _File(status.st_ino, max(0, status.st_size - RECENT_BYTES))
                elif known.inode != status.st_ino or status.st_size < known.place:
                    known = self._files[path.name] = _File(status.st_ino, 0)
                if status.st_size == known.place:
                    return []
                stream.seek(known.place)
                data = stream.read(RECENT_BYTES)
        except OSError:
            return []
        known.place += len(data)
        *whole, known.rest = (known.rest + data).split(b"\n")
        return [line for text in whole if (line := self._take(text)) is not None]
