"""A lab's report: the document, the trace and ``result.json``, made of what the phases of a run have left."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.evidence import results
from labkit.evidence.records import Lane
from labkit.tables import format_table
from labsched.markdown import markdown


class Report:
    """A report while it is being written.

    Attributes:
        out: the run's folder below ``results/``.
        phases: the data that each phase's client has left, by name and in the order asked for; only phases that ran.

    Raises:
        LabError: none of the phases ran.
    """

    def __init__(self, out: Path, title: str, phases: Sequence[str]) -> None:
        self.out = out
        self.phases = {name: results.read_phase(out, name) for name in phases if results.has_phase(out, name)}
        if not self.phases:
            raise LabError(f"no phase left a result in {out}", code="results-none")
        self._context = results.context_of(out, next(iter(self.phases)))
        self._parts = [f"# {title}"]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the first phase."""
        settings: Mapping[str, Any] = self._context["settings"]
        return settings

    def say(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(text)

    def table(self, title: str, rows: Sequence[Sequence[object]], header: Sequence[str], left: int = 1) -> None:
        """Add a table, and print it; all but the first ``left`` columns are numbers."""
        print(f"\n{title}\n" + format_table(rows, header, right=range(left, len(header))))
        self._parts += [f"## {title}", markdown(rows, header)]

    def finish(
        self, metrics: Mapping[str, Any], lanes: Sequence[Lane], picture: str = "", traced: str = "the run"
    ) -> None:
        """Write ``result.json``, ``trace.json`` of the lanes (if any), and ``report.md``, which shows ``picture``."""
        triton = next(iter(self.phases.values()))["triton"]
        results.write_result(
            self.out,
            self._context["lab"],
            self.settings,
            metrics,
            triton,
            runtime=self._context.get("runtime", ""),
            quick=self._context.get("quick", False),
        )
        if picture:
            self._parts.append(f"![{Path(picture).stem}]({picture})")
        if filled := [lane for lane in lanes if lane.records]:
            write_perfetto(filled, self.out / "trace.json")
            self._parts.append(f"`trace.json` ({traced}) opens in https://ui.perfetto.dev.")
        atomic_write(self.out / "report.md", "\n\n".join(self._parts) + "\n")


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
            details = {**step.logged(), **step.more}
            events.append(_slice(pid, 0, f"batch of {step.batch}", step.began, step.over, details))
            for at, size in ((step.began, step.batch), (step.over, 0)):
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
