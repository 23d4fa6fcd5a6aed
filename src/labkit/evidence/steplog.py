"""The reader of the step logs of our models (docs/develop/step-log.md); the writer is ``labsched.log.steplog``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.disk import atomic_write
from labkit.evidence.records import RequestRecord
from labkit.waiting import attempts
from labsched.log.files import open_to_read
from labsched.log.steplog import REQUEST, SCHEDULER, parse_any_line, parse_step_line
from labsched.step import Step

REPLICA = "replica-"  # the prefix of a replica's folder, before its number
LATE_S, LOOK_S = 5.0, 0.005  # a step is written down after its answers were sent: how long that is waited for


def read_step_log(
    run_dir: Path, model: str | None = None, since: float = 0.0, behind: Mapping[int, int] | None = None
) -> list[Step]:
    """Every step of a run folder (of one model) that began at ``since`` (seconds) or later, in order of time.

    Args:
        behind: what :func:`log_sizes` said at some time before ``since``: what was there by then is not read again.
    """
    steps = [
        Step.from_json(data)
        for data in _lines(run_dir, behind or {})
        if data.get("kind") != "change" and model in (None, data["model"]) and data["t"] - data["dur"] >= since
    ]
    return sorted(steps, key=lambda step: step.began)


def log_sizes(run_dir: Path) -> dict[int, int]:
    """How long each log of a folder is now, in bytes, by its inode: a log that is rotated later has another name."""
    return {(status := path.lstat()).st_ino: status.st_size for path in _files(run_dir)}


def keep_step_log(run_dir: Path, path: Path, since: float, records: Sequence[RequestRecord]) -> None:
    """Copy the log of every model from ``since`` (seconds) on into one file, in order of time.

    A log from which a run can be replayed is whole before it is copied, unless other clients' requests keep on running.
    A step that began while none of ``records`` was in flight is marked ``"warm_up": true``: it counts in no figure.
    Its end says nothing: a step ends after its answers were sent, so the last one of the warm-up may end when the
    first of ``records`` has been sent already.
    """
    for _ in attempts(LATE_S, LOOK_S):
        kept = _kept_lines(run_dir, since, records)
        if not _unfinished(kept):
            break
    atomic_write(path, "".join(json.dumps(data, separators=(",", ":")) + "\n" for data in kept))


def _kept_lines(run_dir: Path, since: float, records: Sequence[RequestRecord]) -> list[dict[str, Any]]:
    """The lines that :func:`keep_step_log` copies, in order of time."""
    kept = []
    spans = _spans(records)
    for data in _lines(run_dir, {}, parse_any_line):
        if data.get("kind") == SCHEDULER:
            kept.append(data)
            continue
        began = data["arrived"] if data.get("kind") == REQUEST else data["t"] - data.get("dur", 0.0)
        if began < since:
            continue
        counted = any(start <= began <= end for start, end in spans)
        kept.append(data if counted else {**data, "warm_up": True})
    return sorted(kept, key=lambda data: data["t"])


def _unfinished(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Whether requests of a scheduler that can be replayed have not ended yet by these lines, in order of time."""
    replayed = {line["model"] for line in lines if line.get("kind") == SCHEDULER}
    live: set[str] = set()
    for line in lines:
        if line["model"] in replayed and line.get("kind") not in (REQUEST, SCHEDULER):
            live = (live | {*line["ids"]}) - {*line.get("ended", ())}
    return bool(live)


def run_folders(run_dir: Path) -> list[Path]:
    """Return the run folder of a stack and its replicas' folders in it."""
    return [run_dir, *sorted(path for path in run_dir.glob(f"{REPLICA}*") if path.is_dir())]


def _files(run_dir: Path) -> list[Path]:
    """The logs of a stack's server, or of all its replicas (one folder each)."""
    return sorted(path for folder in run_folders(run_dir) for path in folder.glob("steps-*.jsonl"))


def _lines(
    run_dir: Path, behind: Mapping[int, int], take: Callable[[bytes], dict[str, Any] | None] | None = None
) -> Iterator[dict[str, Any]]:
    """The lines of all logs of a folder, after the first ``behind`` bytes of each. Foreign lines are left out.

    A line of one of several replicas has the replica's number.
    """
    read: dict[int, tuple[Path, bytes]] = {}  # by inode
    for path in reversed(_files(run_dir)):  # a log before the one that it was rotated to: that may happen meanwhile
        try:
            stream = open_to_read(path)
        except OSError:
            continue
        with stream:
            status = os.fstat(stream.fileno())
            place = behind.get(status.st_ino, 0)
            if place <= status.st_size:  # else the file was started over
                stream.seek(place)
            read.setdefault(status.st_ino, (path, stream.read()))
    for path, text in reversed(read.values()):
        number = path.parent.name.removeprefix(REPLICA) if path.parent != run_dir else ""
        whose = {"replica": number} if number else {}
        for line in text.splitlines():
            if (data := (take or parse_step_line)(line)) is not None:
                yield data | whose


def _spans(records: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    """The times (seconds) in which some request was in flight, as few spans as possible."""
    spans: list[tuple[float, float]] = []
    for start, end in sorted((record.start, record.end) for record in records):
        if spans and start <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(end, spans[-1][1]))
        else:
            spans.append((start, end))
    return spans


def refusal_reason(line: Mapping[str, Any]) -> str | None:
    """Why the first request in the queue waits, with the numbers: "no KV block: needs 2, 5 used, 3 reserved, of 8".

    None: the line does not say.
    """
    why, because, slots = line.get("why"), line.get("because"), line.get("slots")
    why = why if isinstance(why, str | None) else why[0]
    if why == "no KV block" and because and line.get("evicted"):
        return f"{why}: this step preempts ({shortage_in_words(because)})"
    if why == "no KV block" and because:
        reserved = f", {because['reserve']} reserved" if because["reserve"] else ""
        return f"{why}: needs {because['need']}, {because['used']} used{reserved}, of {because['blocks']}"
    if why == "no tokens" and because:
        return f"{why}: its prompt has {because['tokens']}, the step has room for {because['room']}"
    if why == "no slot" and slots:
        return f"{why}: {slots} of {slots} are taken"
    if why == "batch closed" and slots:
        return f"{why}: {len(line['ids'])} of {slots} slots are taken, and no request may join now"
    if why == "no prefix":
        return f"{why}: another request is computing the beginning that they share"
    return why


def shortage_in_words(because: Mapping[str, int]) -> str:
    return f"the batch would hold {because['used']} blocks of {because['blocks']}" if because else "no KV block"
