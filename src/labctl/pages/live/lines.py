"""Completes the lines of a step log: each gets the fields that it leaves out.

This is the one definition of a model's state (docs/develop/step-log.md has it in words). The page has it by way of
:mod:`labctl.pages.live.feed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from labctl.clock import Clock, pause_limit
from labctl.runtimes.record import Record
from labctl.workspace import Workspace
from labkit.errors import LabError
from labsched.log.files import open_to_read
from labsched.log.steplog import parse_step_line

Line = Mapping[str, Any]

CHANGE, HELD = "change", "held"  # kinds of lines that are not steps; HELD: a step waits for the clock
MOST_ROWS = 2**16
_COLUMNS = {"tokens": 0, "made": 1, "texts": "", "blocks": 0}  # fields with an entry for each request: the defaults
_STAYS = ("slots", "kv_blocks", "kv_blocks_used")  # fields that hold until a later line changes them


@dataclass
class Instance:
    """One instance of a model, as its lines so far have shown it; one for each reader."""

    steps: int = 0
    last: dict[str, Any] = field(default_factory=lambda: {"slots": 0, "kv_blocks": 0, "kv_blocks_used": 0})
    rows: dict[str, int] = field(default_factory=dict)  # for a log without rows
    sitting: dict[int, str] = field(default_factory=dict)  # sequences keep their seats between two requests
    seats: Sequence[str] = ()
    waits: Line = field(default_factory=lambda: {"waiting": (), "queue": 0, "why": None})

    def whole(self, line: Line) -> Line:
        """The next line in order of time, with what it leaves out.

        That is ``n``, ``rows``, ``phase``, ``tokens``, ``made``, ``texts``, ``blocks`` (an entry for each of ``ids``),
        ``seats``, ``slots``, ``waiting``, ``queue``, ``why``, ``kv_blocks`` and ``kv_blocks_used``.
        """
        kind, names = line.get("kind", "step"), line["ids"]
        self.last |= {name: line[name] for name in _STAYS if name in line}
        rows = self._rows(line, names) if kind != CHANGE else ()
        seats = self._seats(line, kind, names, rows)
        waits = self._waits(line, kind)
        if kind == CHANGE and "kv_blocks_used" not in line and not any(seats):
            self.last["kv_blocks_used"] = 0
        self.steps += kind not in (CHANGE, HELD)
        columns = {name: _column(line, name, usual) for name, usual in _COLUMNS.items()}
        places = {"rows": rows, "phase": "".join(_column(line, "phase", "d")), "kind": kind, "seats": seats}
        return {"n": self.steps, **line, **self.last, **waits, **columns, **places}

    def _waits(self, line: Line, kind: str) -> Line:
        """The waiting requests, their number, and the reason. A change without them only removes ended requests."""
        if kind == CHANGE and "queue" not in line:
            gone = line.get("ended", ())
            still = [name for name in self.waits["waiting"] if name not in gone]
            left = len(self.waits["waiting"]) - len(still)
            self.waits = {**self.waits, "waiting": still, "queue": self.waits["queue"] - left}
            return self.waits
        waits = {"waiting": line.get("waiting", ()), "queue": line.get("queue", 0), "why": line.get("why")}
        if kind != HELD:
            self.waits = waits
        return waits

    def _rows(self, line: Line, names: Sequence[str]) -> Sequence[int]:
        """The seat of each request; where the log does not say, the lowest that was free when it came."""
        if "rows" in line:
            given: Sequence[int] = line["rows"]
            if not all(type(row) is int and 0 <= row < MOST_ROWS for row in given):
                raise ValueError(f"rows {given!r:.80}")
            return given
        self.rows = {name: row for name, row in self.rows.items() if name in names}
        for name in names:
            taken = set(self.rows.values())
            self.rows.setdefault(name, next(row for row in range(len(taken) + 1) if row not in taken))
        return [self.rows[name] for name in names]

    def _seats(self, line: Line, kind: str, names: Sequence[str], rows: Sequence[int]) -> Sequence[str]:
        """The request in each seat after the line; if the line has no seats, the requests of the step that continue."""
        if "seats" in line:
            given: Sequence[str] = line["seats"]
            self.seats = given if kind != HELD else self.seats
            return given
        if kind != HELD:
            ended = line.get("ended", ())
            if kind != CHANGE:
                kept = self.sitting if "start" in line else {}  # a step of sequences names their ends
                self.sitting = {**kept, **dict(zip(rows, names, strict=True))}
            self.sitting = {row: name for row, name in self.sitting.items() if name not in ended}
            self.seats = [self.sitting.get(row, "") for row in range(max(self.sitting, default=-1) + 1)]
        return self.seats


@contextmanager
def other_form_as_error(source: object) -> Iterator[None]:
    """Raises LabError for what is raised of lines of a source that have another form: a model may write anything."""
    try:
        yield
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise LabError(
            f"the step log of {source} has lines of another form", str(error), code="step-log-invalid"
        ) from error


def read_step_lines(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of one step log, without the warm-up. Raises LabError: it cannot be read."""
    try:
        with open_to_read(log) as stream:
            yield from (
                line for text in stream if (line := parse_step_line(text)) is not None and not line.get("warm_up")
            )
    except OSError as error:
        raise LabError(
            f"{log} cannot be read", str(error), "name a folder below results/, or a stack", code="log-unreadable"
        ) from error


def clock_of(workspace: Workspace, record: Record) -> Clock:
    """The clock of a stack that is up: that of its first server."""
    folder = workspace.folder(record.stack)
    run_dir = folder.run_dir(record.folder(record.servers[0].number))
    return Clock(run_dir, tuple(record.models), pause_limit(folder.repository))


def held_steps(clock: Clock) -> list[Line]:
    """The clock states of the instances whose next step waits for the clock."""
    states = [state for model in clock.models for state in clock.states(model)] if clock.modes() else []
    return [state for state in states if state["state"] == "held"]


def _column(line: Line, name: str, usual: Any) -> Sequence[Any]:
    entries = line.get(name) or ()
    return entries if len(entries) == len(line["ids"]) else [usual] * len(line["ids"])
