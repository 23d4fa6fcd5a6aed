"""A lab's report: the document, the trace and ``result.json``, made of what the phases of a run have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit import results
from labkit.disk import atomic_write
from labkit.errors import LabError
from labkit.lane import Lane
from labkit.pictures import perfetto
from labkit.tables import format_table, markdown


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
            perfetto.write_perfetto(filled, self.out / "trace.json")
            self._parts.append(f"`trace.json` ({traced}) opens in https://ui.perfetto.dev.")
        atomic_write(self.out / "report.md", "\n\n".join(self._parts) + "\n")
