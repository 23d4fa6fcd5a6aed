"""A run as a trace for ui.perfetto.dev (Chrome's trace event format; times in microseconds)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.disk import atomic_write
from labkit.lane import Lane


def write_perfetto(lanes: Sequence[Lane], path: Path) -> None:
    """One process per lane, one thread per request, and the executions with their batch size as a counter."""
    events: list[dict[str, Any]] = []
    for pid, lane in enumerate(lanes, 1):
        events.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": lane.title}})
        for tid, record in enumerate(lane.records, 1):
            name = {"name": record.prompt[:40]}
            events.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": name})
            first, last = record.span
            events.append(_slice(pid, tid, "waiting", record.start, first, {}))
            events.append(_slice(pid, tid, record.label, first, last, {"tokens": record.output_tokens}))
            events += [
                {"ph": "i", "s": "t", "pid": pid, "tid": tid, "ts": at * 1e6, "name": text or "(part of a character)"}
                for at, text in record.responses
            ]
        for step in lane.steps:
            details = {"ids": list(step.ids), **step.more}
            events.append(_slice(pid, 0, f"batch of {step.batch}", step.began, step.ended, details))
            for at, size in ((step.began, step.batch), (step.ended, 0)):
                events.append({"ph": "C", "pid": pid, "ts": at * 1e6, "name": "batch size", "args": {"requests": size}})
    atomic_write(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def _slice(pid: int, tid: int, name: str, began: float, ended: float, args: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "name": name,
        "ts": began * 1e6,
        "dur": (ended - began) * 1e6,
        "args": dict(args),
    }
