"""Reads the step log that `labsched.vllm.RecordingScheduler` writes in a vLLM outside the labs.

A folder holds the recordings of one or several servers, each a row of files. The reader fills in what the writer leaves
out, so that the lines are as in docs/develop/step-log.md.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labsched.errors import LabError
from labsched.log.files import json_object, open_to_read
from labsched.log.lines import DAMAGE, NAMES, check_line, damage_as_error, is_number, is_whole, require_field
from labsched.log.settings import HASH_BYTES
from labsched.log.steplog import REQUEST, SCHEDULER
from labsched.vllm.files import BLOCK_HASH_BYTES, LIMIT, PREFIX, Line, is_locked, recorded_files, run_of

ARRIVAL = "arrival"  # a kind of line: a request has come
NO_TEXTS = "vLLM's recordings hold no texts"
UNFINISHED = "unfinished"  # why a request has no end in a recording
WRITTEN_S = 10.0  # since the last line of a server whose lock cannot be seen from here
MOST = 50_000_000  # requests in the batches and queues of steps, and tokens with a hash: about 1 GB
LONGEST_NAME = 9  # digits
START_S = 120.0  # within which the ranks of one start begin
MEMORY_FIELDS = ("num_gpu_blocks", "device_memory", "block_bytes")  # may differ from rank to rank
LONGEST_LINE = 2**20  # bytes from the end of a file in which its last line is looked for
MOST_BYTES = 1e18  # of a device


def is_recording(path: Path) -> bool:
    """Whether it is a folder with such recordings, or one of its files."""
    return bool(recorded_files(path) if path.is_dir() else run_of(path))


def recordings_in(path: Path) -> dict[str, list[Path]]:
    """The files of each recording in a folder, oldest first; for a file, its recording alone."""
    folder, name = (path, "") if path.is_dir() else (path.parent, run_of(path))
    found: dict[str, list[Path]] = defaultdict(list)
    for file in recorded_files(folder):
        if name in ("", run_of(file)):
            found[run_of(file)].append(file)
    return dict(found)


def latest_recording(path: Path, run: str | None = None) -> str:
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
            f"no file there is called {PREFIX}STARTED-PROCESS-RANK.NUMBER.jsonl",
            "see docs/guide/your-own-vllm.md",
            code="recording-missing",
        )
    return run or max(found, key=lambda name: _written_at(found[name]))


def ranks_of_one_start(path: Path, run: str | None) -> list[str]:
    """The recordings of one server with data parallelism, in the order of their ranks: that of ``run``, or the newest.

    They have the same settings and different ranks, and started together or wrote at the same time. Raises LabError:
    there is none, or two servers that cannot be told apart.
    """
    chosen, found = latest_recording(path, run), recordings_in(path)
    spans = {name: span for name in found if (span := _Span.of(found[name])) is not None}
    if chosen not in spans:  # it is damaged, which its reader says
        return [chosen]
    ranks = {spans[chosen].rank: chosen}
    for name in sorted(spans, key=lambda name: _written_at(found[name]), reverse=True):
        if all(spans[name].is_beside(spans[other]) for other in ranks.values()):
            ranks[spans[name].rank] = name
    for name, span in spans.items():
        mine = ranks.get(span.rank, name)
        if len(ranks) > 1 and name != mine and span.settings == spans[mine].settings and span.overlaps(spans[mine]):
            raise LabError(
                f"{path} holds several servers, and which ranks belong together is not recorded",
                f"{mine} and {name} are the same rank and have the same settings and time",
                "name the file of one rank, or record each server into a folder of its own",
                code="recording-ambiguous",
            )
    return [ranks[rank] for rank in sorted(ranks, key=int)]


class _Span(NamedTuple):
    """Whose recording it is, and when it was written (seconds since the epoch); ``settings``: without its memory."""

    rank: str
    settings: Mapping[str, Any]
    began: float
    ended: float

    @classmethod
    def of(cls, files: Sequence[Path]) -> _Span | None:
        """By the ends of its files; None: they cannot be read."""
        try:
            with open_to_read(files[0]) as stream:
                head = json_object(stream.readline())
            with open_to_read(files[-1]) as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - LONGEST_LINE))
                *_, last, _ = b"\n", *stream.read().split(b"\n")
            began, wall = float(head["t"]), float(head["wall"])
            ended = float(json_object(last)["t"])
            settings = {name: value for name, value in head["vllm"].items() if name not in MEMORY_FIELDS}
            return cls(str(int(head["instance"])), settings, began + wall, max(began, ended) + wall)
        except (OSError, *DAMAGE):
            return None

    def overlaps(self, other: _Span) -> bool:
        """Whether both were written at one time."""
        return self.began <= other.ended and other.began <= self.ended

    def is_beside(self, other: _Span) -> bool:
        """Whether it is another rank of the same start."""
        together = self.overlaps(other) or abs(self.began - other.began) <= START_S
        return self.rank != other.rank and self.settings == other.settings and together


def _written_at(files: Sequence[Path]) -> float:
    """When a recording was written to last (seconds since the epoch); 0.0 if its last file was deleted meanwhile."""
    try:
        return files[-1].stat().st_mtime
    except FileNotFoundError:
        return 0.0


def is_written(path: Path) -> bool:
    """Whether the newest recording is being written: a moment ago, or by a server that has locked its last file."""
    files = recordings_in(path).get(latest_recording(path), [])
    if time.time() - _written_at(files) < WRITTEN_S:
        return True
    with contextlib.suppress(OSError):
        return is_locked(files[-1])
    return False


def read_vllm_recording(path: Path, run: str | None = None) -> list[Line]:
    """The whole lines of a recording, the settings first. A request without an end has what it got so far.

    ``partial`` in the settings says that older files are gone, or left out because there is more than MOST in all: then
    the requests that had come before are left out, and steps may name them.

    Raises:
        LabError: there is no such recording, a line of it is damaged, or there is more than MOST in its last file.
    """
    recording = latest_recording(path, run)
    files = recordings_in(path)[recording]
    oldest, room, found = files[-1], float(MOST), list[Line]()
    for file in reversed(files):
        if found and _number(file) != _number(oldest) - 1:
            break
        whole = Whole(room)
        try:
            lines = [line for text in _texts(file) if (line := whole.line(text, file)) is not None]
        except _TooMuch as error:
            if found:
                break
            raise LabError(
                f"{file} is too large to be explained",
                f"its steps and prompts have over {MOST:,} entries",
                f"record with a smaller {LIMIT}",
                code="recording-too-large",
            ) from error
        oldest, room, found = file, whole.room, lines + found
    if not found or found[0]["kind"] != SCHEDULER:
        raise LabError(
            f"{oldest} is damaged",
            "it does not begin with the settings of a scheduler",
            "record again",
            code="step-log-damaged",
        )
    with damage_as_error(path):
        return _with_all_requests(found, _number(oldest) != 1)


def _number(file: Path) -> int:
    return int(file.name.split(".")[1])


class _TooMuch(Exception):
    """The lines of a recording say more than there is room for."""


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
        rest = {"t": end, "made": made[name], "why": UNFINISHED, "left": steps + line["after"], "word": False}
        lines.append({**line, **rest, "kind": REQUEST, "tenant": None, "resumable": True, "prefixes": ""})
        check_line(lines[-1])
    if unfinished:
        lines[0]["partial"] = True
    if partial:
        began = next((line["t"] - line["dur"] for line in lines if line["kind"] == "step"), 0.0)
        lines = [line for line in lines if line["kind"] != REQUEST or line["arrived"] >= began]
    return lines


def _prefixes(line: Mapping[str, Any], head: Mapping[str, Any]) -> str:
    """A hash for each token of the full blocks, in base64, as the labs' own recordings have it."""
    hashes, size = base64.b64decode(line["hashes"]), int(head["hash_block_size"])
    blocks = (hashes[at : at + BLOCK_HASH_BYTES] for at in range(0, len(hashes), BLOCK_HASH_BYTES))
    return base64.b64encode(b"".join(block.ljust(size * HASH_BYTES, b"\0") for block in blocks)).decode()


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
    """Fills in what lines leave out: most steps are only said to be as the one before. One for each file.

    Lines that say the same share their lists. ``room``: how much of MOST is left.
    """

    def __init__(self, room: float = math.inf) -> None:
        self.room = room
        self._ids: Sequence[str] = ()
        self._again: Line = {}  # the fields of a step of these requests
        self._waiting: Sequence[str] = ()
        self._sizes: Line = {}  # of the KV cache
        self._hash_block = 1  # tokens

    def line(self, text: bytes, file: Path) -> Line | None:
        """The line in ``text``, whole; None for an empty one. Raises LabError: it is damaged."""
        try:
            return self.of(json_object(text)) if text.strip() else None
        except DAMAGE as error:
            raise LabError(
                f"{file} is damaged", f"{error}: {text[:80]!r}", "record again", code="step-log-damaged"
            ) from error

    def of(self, line: Line) -> Line:
        kind = line["kind"]
        if kind in ("step", "change"):
            return self._step(line)
        check_line(line)
        _check_names(line)
        if kind == SCHEDULER:
            require_field(isinstance(line["vllm"], dict), "vllm")
            beyond, words = line["beyond"], line["words"]
            require_field(isinstance(beyond, list) and all(isinstance(name, str) for name in beyond), "beyond")
            require_field(all(isinstance(word, str) for word in words.values()), "words")
            require_field(0 <= float(words.get("watermark", 0)) <= 1, "watermark")
            for name in ("gpu_memory_utilization", *MEMORY_FIELDS):
                require_field(is_number(line["vllm"].get(name, 0), MOST_BYTES), name)
            require_field(is_whole(line["hash_block_size"], 1), "hash_block_size")
            self._sizes, self._hash_block = {"kv_blocks": line["blocks"]}, line["hash_block_size"]
        elif kind == REQUEST:
            self._take(len(line["hashes"]) * 3 // 4 // BLOCK_HASH_BYTES * self._hash_block)
        return line

    def _step(self, line: Line) -> Line:
        again = line.pop("again", ())
        line |= self._sizes
        if "batch" in again:
            count = len(self._ids)
            self._again = self._again or {"phase": "d" * count, "tokens": [1] * count, "made": [1] * count}
            line |= {"ids": self._ids, **self._again}
        if "waiting" in again:
            line["waiting"] = self._waiting
        waiting, ended = line.get("waiting", []), line.get("ended", {})
        self._take(len(line["ids"]) + len(waiting))
        check_line(line)
        if ended or "batch" not in again:
            _check_names(line)
            self._ids, self._again = [id for id in line["ids"] if id not in ended], {}
        self._waiting = waiting
        return line

    def _take(self, entries: int) -> None:
        self.room -= entries
        if self.room < 0:
            raise _TooMuch


def _check_names(line: Mapping[str, Any]) -> None:
    """Raises ValueError: a request has another name than its number. Raises KeyError: the line has no server."""
    require_field(isinstance(line["model"], str) and isinstance(line["instance"], str), "model/instance")
    names = [name for field in NAMES for name in line.get(field, ())]
    names += [line["name"]] if line["kind"] in (ARRIVAL, REQUEST) else line.get("ended", ())
    for name in names:
        require_field(isinstance(name, str) and name.isascii() and name.isdigit() and len(name) <= LONGEST_NAME, "name")


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
