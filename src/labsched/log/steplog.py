"""The step log: one JSON line per step, from which timelines and the live view are drawn (docs/develop/step-log.md).

Its writer, and the reader of a line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from labsched.log.files import json_object

VERSION = 2
MOST_BYTES = 32 * 2**20  # of a file; there is one before it
MOST_PROMPT = 1000  # characters
LONG = 16  # items from which on the JSON of a list is kept: most steps repeat the previous list
WATCHED = "watched"  # a viewer who wants texts touches this file of the run folder,
WATCHED_S = 10.0  # and has gone when it is older than this
REQUEST, SCHEDULER = "request", "scheduler"  # kinds of lines that are not steps
_FACT_FIELDS = {"t": int | float, "model": str, "instance": str}  # the types of fields that every line has
_STEP_FIELDS = {**_FACT_FIELDS, "dur": int | float, "ids": list}
_REQUEST_FIELDS = {**_FACT_FIELDS, "arrived": int | float}
_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)
_DIGITS = {number: str(number) for number in range(1024)}


class StepLog:
    """Appends to `<run_dir>/steps-<model>-<instance>.jsonl`.

    If `run_dir` is empty or not writable, nothing is logged and nothing fails: a server must not stop serving because
    its log cannot be written.

    The environment's LABS_STEP_LOG says what is written: "off" nothing, "steps" no texts, "texts" texts always.
    Without it, texts are written while a viewer watches.
    """

    def __init__(self, run_dir: str, model: str, instance: str, most_bytes: int = MOST_BYTES) -> None:
        self._head = {"model": model, "instance": instance}
        self._most = most_bytes
        self._setting = os.environ.get("LABS_STEP_LOG", "")
        self._watched = os.path.join(run_dir, WATCHED)  # noqa: PTH118  a Path's stat costs thrice as much
        self._path = Path(run_dir) / f"steps-{model}-{instance}.jsonl"
        self._file: FileIO | None = None
        self._first = b""  # the line with which each of its files begins
        self._spelled: dict[str, tuple[list[Any], str]] = {}  # long lists of the last lines, and their JSON
        self.count = 0  # of the steps and changes so far
        if run_dir and self._setting != "off":
            self._open()

    def _open(self) -> None:
        try:
            # Not buffered: a step's line is whole in the file as soon as it is written.
            self._file = FileIO(str(self._path), "a")
            self._size = self._path.stat().st_size
        except OSError:
            self._file = None

    @property
    def texts(self) -> bool:
        """Whether texts are logged now; if not, the caller need not make them."""
        if self._file is None or self._setting == "steps":
            return False
        if self._setting == "texts":
            return True
        try:
            return time.time() - os.stat(self._watched).st_mtime < WATCHED_S  # noqa: PTH116
        except OSError:
            return False

    def write(
        self,
        started: float,
        ids: Sequence[object],
        kind: str = "step",
        spelled: str = "",
        over: float | None = None,
        **more: Any,
    ) -> None:
        """Log a step that began at `started` and was `over` then, else now (time.monotonic() seconds).

        `ids` are the names of its requests, in order; `more` is any other field of docs/develop/step-log.md, or a count
        of the model's own: a whole number, or one per request. None and empty ones are left out. `spelled` is more of
        the line that is JSON already: `"name":value`.
        """
        if self._file is None:
            return
        end = time.monotonic() if over is None else over
        self.count += 1
        line = {
            "v": VERSION,
            "n": self.count,
            "t": round(end, 6),
            "dur": round(end - started, 6),
            **self._head,
            "kind": kind,
            "batch": len(ids),
        }
        parts = [spelled] if spelled else []  # what is JSON already
        if type(ids) is list and len(ids) >= LONG:
            parts.append(f'"ids":{self._json("ids", ids)}')
        else:
            line["ids"] = [*map(str, ids)]
        for name, value in more.items():
            if type(value) is list and len(value) >= LONG:
                parts.append(f'"{name}":{self._json(name, value)}')
            elif value or isinstance(value, int):
                line[name] = value
        text = _ENCODER.encode(line)
        if parts:
            text = f"{text[:-1]},{','.join(parts)}}}"
        self._append(f"{text}\n".encode())

    def _json(self, name: str, value: list[Any]) -> str:
        before, text = self._spelled.get(name, (None, ""))
        if before != value:
            text = _list([*map(str, value)] if name == "ids" else value)
            self._spelled[name] = value.copy(), text
        return text

    def note(self, kind: str, first: bool = False, **fields: Any) -> None:
        """Log a fact other than a step, at the time `t` or now; with `first`, every later file begins with it too.

        Its line has neither `n`, `dur` nor `ids`: a reader of steps leaves it out.
        """
        if self._file is None:
            return
        line = {"v": VERSION, "t": round(time.monotonic(), 6), **self._head, "kind": kind, **fields}
        data = f"{_ENCODER.encode(line)}\n".encode()
        self._first = data if first else self._first
        self._append(data)

    @property
    def open(self) -> bool:
        """Whether lines are written."""
        return self._file is not None

    def _append(self, data: bytes) -> None:
        if self._file is None:
            return
        try:
            if self._size + len(data) > self._most:
                self._turn_over()
            self._file.write(data)
            self._size += len(data)
        except OSError:  # the disk is full, or the folder is gone
            self.close()

    def _turn_over(self) -> None:
        """Begin a new file; this one takes the place of the one before it."""
        assert self._file is not None
        self._file.close()
        self._path.replace(self._path.with_suffix(".1.jsonl"))
        self._file = FileIO(str(self._path), "a")
        self._size = self._file.write(self._first)

    def close(self) -> None:
        """Close the file; later writes do nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _list(values: list[Any]) -> str:
    """A list as JSON. Most are counts, and an encoder takes four times as long for a number."""
    if type(values[0]) is int:
        with suppress(KeyError, TypeError):  # of a large number, or of something else
            return f"[{','.join(map(_DIGITS.__getitem__, values))}]"
    return _ENCODER.encode(values)


class RequestNames:
    """Names for requests: what a client calls one, or a number; no two that live have the same."""

    def __init__(self) -> None:
        self._live: set[str] = set()
        self._count = 0

    def take(self, client_name: str = "") -> str:
        """A name that is free, for a request that its client calls `client_name`."""
        self._count += 1
        base = name = client_name[:64] or str(self._count)
        suffix = self._count
        while name in self._live:
            name = f"{base}#{suffix}"
            suffix += 1
        self._live.add(name)
        return name

    def free(self, name: str) -> None:
        """The request has ended."""
        self._live.discard(name)


def parse_step_line(line: bytes) -> dict[str, Any] | None:
    """A step's or change's line; None if it is cut off, of another kind, or not written by a model of ours."""
    return _with_fields(line, _STEP_FIELDS)


def parse_any_line(line: bytes) -> dict[str, Any] | None:
    """A line of any kind, also of the two that only a replay reads: REQUEST and SCHEDULER.

    None as for :func:`parse_step_line`.
    """
    data = _with_fields(line, _FACT_FIELDS)
    if data is None:
        return None
    kind = data.get("kind")
    if kind == SCHEDULER:
        return data
    return data if _has(data, _REQUEST_FIELDS if kind == REQUEST else _STEP_FIELDS) else None


def _with_fields(line: bytes, types: Mapping[str, Any]) -> dict[str, Any] | None:
    try:
        data = json_object(line)
    except ValueError:
        return None
    return data if _has(data, types) else None


def _has(data: Mapping[str, Any], types: Mapping[str, Any]) -> bool:
    return all(isinstance(data.get(name), kind) for name, kind in types.items())
