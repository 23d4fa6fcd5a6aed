"""How far a learner is: ``.labs/exercises.json``, one entry for each exercise that was begun."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from labctl.workspace import Workspace, key_lock
from labkit.disk import atomic_write
from labsched.files import json_object

LOCK_S = 10.0
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
    """Reads and writes the file. What it does not know is kept as it is; a file that cannot be read is put aside."""

    def __init__(self, workspace: Workspace) -> None:
        self._path: Path = workspace.state / "exercises.json"

    def entries(self) -> dict[str, Entry]:
        found = {id: entry_of(data) for id, data in (self._read() or {}).items()}
        return {id: entry for id, entry in found.items() if entry}

    def _read(self) -> dict[str, Any] | None:
        """The file's content: {} where there is none, None where it is damaged."""
        try:
            return json_object(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError):
            return None

    def of(self, id: str) -> Entry:
        return self.entries().get(id, Entry())

    @property
    def current(self) -> str:
        """The id of the exercise that was started last; "" before the first."""
        return last_started(self.entries())

    def start(self, id: str) -> None:
        """Begun, or begun again: what was passed stays passed."""

        def change(before: Entry) -> Entry:
            state = PASSED if before.state == PASSED else STARTED
            return replace(before, state=state, started=time.time())

        self._change(id, change)

    def record_check(self, id: str, passed: bool) -> None:
        """A pass stays a pass, whatever a later check says: people go on to try things out."""
        now = time.time()

        def change(before: Entry) -> Entry:
            ever = passed or before.state == PASSED
            return replace(
                before,
                state=PASSED if ever else STARTED,
                passed=before.passed or (now if passed else 0.0),
                checks=before.checks + 1,
                started=before.started or now,
            )

        self._change(id, change)

    def show_hint(self, id: str, of: int) -> int:
        """How many hints of so many are shown from now on: one more each time."""
        shown = min(self.of(id).hints + 1, of)
        self._change(id, lambda before: replace(before, hints=shown))
        return shown

    def first_open(self, ids: Sequence[str], after: str = "") -> str:
        """The first exercise that has not passed, or the first one ``after`` another; "" where all have."""
        begin = ids.index(after) + 1 if after in ids else 0
        entries = self.entries()
        order = (*ids[begin:], *ids[:begin])
        return next((id for id in order if entries.get(id, Entry()).state != PASSED), "")

    def next_open(self, ids: Sequence[str]) -> str:
        """The exercise to go on with: the current one where it was only opened, else the first open one after it."""
        current, entry = self.current, self.of(self.current)
        opened = current in ids and entry.state == STARTED and not entry.checks
        return current if opened else self.first_open(ids, current)

    def _change(self, id: str, change: Callable[[Entry], Entry]) -> None:
        """One entry anew; the lock is for two commands at once."""
        with key_lock(self._path, LOCK_S):
            data = self._read()
            if data is None:
                aside = self._path.with_name(f"{self._path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
                self._path.rename(aside)
                data = {}
            data[id] = asdict(change(entry_of(data.get(id)) or Entry()))
            atomic_write(self._path, json.dumps(dict(sorted(data.items())), indent=1))


def last_started(entries: Mapping[str, Entry]) -> str:
    """The id of the exercise that was started last; "" where none was."""
    started = {id: entry.started for id, entry in entries.items() if entry.started}
    return max(started, key=lambda id: started[id], default="")


def entry_of(data: object) -> Entry | None:
    """The entry in a file, as far as its values are of the right types; None for what is none."""
    if not isinstance(data, dict):
        return None
    good: dict[str, Any] = {}
    for field in fields(Entry):
        kind = type(field.default)
        if isinstance(data.get(field.name), (int, float) if kind is float else kind):
            good[field.name] = data[field.name]
    return Entry(**good)
