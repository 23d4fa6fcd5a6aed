"""How far a learner is: ``.labs/exercises.json``, one entry for each exercise that was begun."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labctl.workspace import Workspace, atomic_write

NEW, STARTED, PASSED = "new", "started", "passed"


@dataclass(frozen=True)
class Entry:
    """One exercise. Times are seconds since the epoch; ``hints`` counts those that were shown."""

    state: str = NEW
    started: float = 0.0
    passed: float = 0.0
    checks: int = 0
    hints: int = 0


class Progress:
    """Reads and writes the file; a damaged one counts as none."""

    def __init__(self, workspace: Workspace) -> None:
        self._path: Path = workspace.state / "exercises.json"

    def entries(self) -> dict[str, Entry]:
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            data: Mapping[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
            return {id: Entry(**entry) for id, entry in data.items()}
        return {}

    def of(self, id: str) -> Entry:
        return self.entries().get(id, Entry())

    @property
    def current(self) -> str:
        """The id of the exercise that was started last; "" before the first."""
        begun = {id: entry.started for id, entry in self.entries().items() if entry.started}
        return max(begun, key=lambda id: begun[id]) if begun else ""

    def start(self, id: str) -> None:
        """Begun, or begun again: what was passed stays passed until a check fails."""
        before = self.of(id)
        self._write(id, replace(before, state=STARTED if before.state == NEW else before.state, started=time.time()))

    def checked(self, id: str, passed: bool) -> None:
        """A failing check returns an exercise that was passed to the ones that are not."""
        before = self.of(id)
        now = time.time()
        state = PASSED if passed else STARTED
        when = (before.passed or now) if passed else 0.0
        self._write(id, replace(before, state=state, passed=when, checks=before.checks + 1,
                                started=before.started or now))  # fmt: skip

    def hinted(self, id: str, shown: int) -> None:
        self._write(id, replace(self.of(id), hints=shown))

    def _write(self, id: str, entry: Entry) -> None:
        entries = {**self.entries(), id: entry}
        atomic_write(self._path, json.dumps({id: asdict(e) for id, e in sorted(entries.items())}, indent=1))
