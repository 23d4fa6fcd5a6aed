"""Reads the step log that `labsched.vllm.RecordingScheduler` writes in a vLLM outside the labs.

A folder holds the recordings of one or several servers, each a row of files. The reader fills in what the writer leaves
out, so that the lines are as in docs/develop/step-log.md.
"""

from __future__ import annotations

import base64
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labsched.errors import LabError
from labsched.files import json_object, open_to_read
from labsched.lines import damage_as_error
from labsched.steplog import REQUEST, SCHEDULER
from labsched.vllm.files import PREFIX

ARRIVAL = "arrival"  # a kind of line: a request has come
NO_TEXTS = "vLLM's recordings hold no texts"
UNFINISHED = "unfinished"  # why a request has no end in a recording
TOKEN_BYTES, HASH_BYTES = 3, 6  # of a token in `prefixes` (labsched.recording), and of a block in `hashes`
WRITTEN_S = 10.0  # since the last line of a server on another machine, or in a container
Line = dict[str, Any]


def is_recording(path: Path) -> bool:
    """Whether it is a folder with such recordings, or one of its files."""
    return any(path.glob(f"{PREFIX}*.jsonl")) if path.is_dir() else path.match(f"{PREFIX}[0-9]*.jsonl")


def recordings_in(path: Path) -> dict[str, list[Path]]:
    """The files of each recording in a folder, oldest first; for a file, its recording alone."""
    folder, name = (path, "") if path.is_dir() else (path.parent, _run(path))
    found: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(folder.glob(f"{PREFIX}*.jsonl")):
        if name in ("", _run(file)):
            found[_run(file)].append(file)
    return dict(found)


def _run(file: Path) -> str:
    return file.name.partition(".")[0]


def latest_recording(path: Path, run: str = "") -> str:
    """The recording of that name, or the one written to last. Raises LabError: there is none."""
    found = recordings_in(path)
    if run and run not in found:
        raise LabError(
            f"{path} has no recording '{run}'",
            f"it has: {', '.join(found) or 'none'}",
            "name one of them",
            code="phase-unknown",
        )
    if not found:
        raise LabError(
            f"{path} has no recording",
            f"no file there is called {PREFIX}*.jsonl",
            "see docs/guide/your-own-vllm.md",
            code="recording-missing",
        )
    return run or max(found, key=lambda name: _written_at(found[name]))


def _written_at(files: Sequence[Path]) -> float:
    """When a recording was written to last (seconds since the epoch); 0.0 if its last file was deleted meanwhile."""
    try:
        return files[-1].stat().st_mtime
    except FileNotFoundError:
        return 0.0


def is_written(path: Path) -> bool:
    """Whether the newest recording is being written: a moment ago, or by a process that still runs on this machine."""
    name = latest_recording(path)
    if time.time() - _written_at(recordings_in(path).get(name, [])) < WRITTEN_S:
        return True
    try:
        os.kill(int(name.split("-")[-2]), 0)
    except PermissionError:  # it is another user's process
        return True
    except (OSError, ValueError, IndexError):
        return False
    return True


def read_vllm_recording(path: Path, run: str = "") -> list[Line]:
    """The whole lines of a recording, the settings first. A request without an end has what it got so far.

    ``partial`` in the settings says that older files are gone: then the requests that had come before are left out,
    and steps may name them.

    Raises:
        LabError: there is no such recording, or a line of it is damaged.
    """
    recording = latest_recording(path, run)
    files = recordings_in(path)[recording]
    whole, found = Whole(), list[Line]()
    for file in files:
        found += [line for text in _texts(file) if (line := whole.line(text, file)) is not None]
    if not found or found[0]["kind"] != SCHEDULER:
        raise LabError(
            f"{files[0]} is damaged",
            "it does not begin with the settings of a scheduler",
            "record again",
            code="step-log-damaged",
        )
    oldest_is_there = files[0].name.endswith(".000001.jsonl")
    with damage_as_error(path):
        return _with_all_requests(found, not oldest_is_there)


def _with_all_requests(found: Sequence[Line], partial: bool) -> list[Line]:
    """The steps, and a line REQUEST for each request: of one without an end, what it got so far."""
    head = found[0]
    lines = [head | ({"partial": True} if partial else {})]
    unfinished: dict[str, Line] = {}  # the lines ARRIVAL of requests without an end, by name
    made: dict[str, int] = defaultdict(int)  # tokens of each request so far
    for line in found:
        kind = line["kind"]
        if kind == ARRIVAL:
            unfinished.setdefault(line["name"], line)  # each file repeats those that are on their way
        elif kind == REQUEST:
            unfinished.pop(line["name"], None)
            lines.append(line | {"prefixes": _prefixes(line, head)})
        elif kind != SCHEDULER:
            for name, count in zip(line["ids"], line.get("made", ()), strict=False):
                made[name] += count
            lines.append(line)
    end = lines[-1]["t"]
    steps = sum(line["kind"] == "step" for line in lines)
    for name, line in unfinished.items():
        if made[name]:
            rest = {"t": end, "made": made[name], "why": UNFINISHED, "left": steps + line["after"], "word": False}
            lines.append({**line, **rest, "kind": REQUEST, "tenant": "", "resumable": True, "prefixes": ""})
    if unfinished:
        lines[0]["partial"] = True
    if partial:
        began = next((line["t"] - line["dur"] for line in lines if line["kind"] == "step"), 0.0)
        lines = [line for line in lines if line["kind"] != REQUEST or line["arrived"] - line["waited"] >= began]
    return lines


def _prefixes(line: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """A hash for each token of the full blocks, in base64, as the labs' own recordings have it."""
    hashes, size = base64.b64decode(line["hashes"]), int(head["hash_block_size"])
    blocks = (hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES))
    return base64.b64encode(b"".join(block.ljust(size * TOKEN_BYTES, b"\0") for block in blocks)).decode()


def _texts(file: Path) -> Iterator[bytes]:
    """The lines of a file; a last one without its end is still being written, or its server was killed."""
    try:
        with open_to_read(file) as stream:
            *texts, _ = stream.read().split(b"\n")
    except FileNotFoundError:
        return  # it was rotated away
    except OSError as error:
        raise LabError(
            f"{file} cannot be read", error.strerror or str(error), "", code="recording-unreadable"
        ) from error
    yield from texts


class Whole:
    """Fills in what lines leave out: most steps are only said to be as the one before. One for each recording."""

    def __init__(self) -> None:
        self._ids: Sequence[str] = ()
        self._waiting: Sequence[str] = ()
        self._sizes: Line = {}  # of the KV cache

    def line(self, text: bytes, file: Path) -> Line | None:
        """The line in ``text``, whole; None for an empty one. Raises LabError: it is damaged."""
        try:
            return self.of(json_object(text)) if text.strip() else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LabError(
                f"{file} is damaged", f"{error}: {text[:80]!r}", "record again", code="step-log-damaged"
            ) from error

    def of(self, line: Line) -> Line:
        if line["kind"] == SCHEDULER:
            self._sizes = {"kv_blocks": line["blocks"]}
        if line["kind"] not in ("step", "change"):
            return line
        line |= self._sizes
        again = line.pop("again", ())
        if "batch" in again:
            count = len(self._ids)
            line |= {"ids": [*self._ids], "phase": "d" * count, "tokens": [1] * count, "made": [1] * count}
        if "waiting" in again:
            line["waiting"] = [*self._waiting]
        self._ids = [id for id in line["ids"] if id not in line.get("ended", {})]
        self._waiting = line.get("waiting", ())
        return line


class RecordingTail:
    """Follows the newest recording of a folder while it is written; at first from the beginning of its last file.

    ``run`` is that recording's name.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.run = folder, ""
        self._file: Path | None = None
        self._place, self._rest, self._whole = 0, b"", Whole()

    def read(self) -> list[Line]:
        """The steps that were written since the last call, whole."""
        lines: list[Line] = []
        self.run = latest_recording(self._folder)
        files = recordings_in(self._folder).get(self.run, [])
        unread = files[files.index(self._file) :] if self._file in files else files[-1:]
        for file in unread:
            if file != self._file:
                self._file, self._place, self._rest, self._whole = file, 0, b"", Whole()
            lines += self._lines(file)
        return lines

    def _lines(self, file: Path) -> list[Line]:
        try:
            with open_to_read(file) as stream:
                stream.seek(min(self._place, os.fstat(stream.fileno()).st_size))
                data = stream.read()
        except OSError:
            return []
        self._place += len(data)
        *texts, self._rest = (self._rest + data).split(b"\n")
        lines = [line for text in texts if (line := self._whole.line(text, file)) is not None]
        return [line for line in lines if line["kind"] in ("step", "change")]


def vllm_ids(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """vLLM's ids of the requests of a recording, by their names in it."""
    return {line["name"]: str(line["id"]) for line in lines if line["kind"] == REQUEST}
